"""Decides which tokens are computed in a step. Knows no tensor, no device and no text."""
