"""The table: its columns and cells, rows as tensors, and rows from sources."""
