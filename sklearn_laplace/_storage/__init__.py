"""Describe fitted models as plain data, and restore them."""
