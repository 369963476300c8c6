"""Encoders of text: models whose tokens see both sides, for vectors, labels and scores."""
