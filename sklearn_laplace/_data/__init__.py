"""Rows and tables: validation, encoding, scales."""
