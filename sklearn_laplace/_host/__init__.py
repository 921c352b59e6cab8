"""The only package that drives skorch."""
