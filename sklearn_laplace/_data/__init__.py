"""Rows and tables: validation, encoding and standardisation."""
