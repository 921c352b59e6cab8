"""Ensembles of members that train together."""
