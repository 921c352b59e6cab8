"""Parameters of the estimators, resolved into objects."""
