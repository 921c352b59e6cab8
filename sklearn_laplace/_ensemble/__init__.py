"""Ensembles: their members, training, weights and updates."""
