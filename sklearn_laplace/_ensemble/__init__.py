"""What members that train together are as one predictive distribution."""
