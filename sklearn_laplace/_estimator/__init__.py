"""The two estimators and the code that they share."""
