"""What runs have said and done, kept to be found again: observations, capture, recall."""
