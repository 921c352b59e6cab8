"""Checks of user input."""
