"""Ensembles: members, their training, weights and updates."""
