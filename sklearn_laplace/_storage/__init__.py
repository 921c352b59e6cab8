"""Fitted models as plain data: describe, restore."""
