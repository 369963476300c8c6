"""Formats made from a plain checkpoint while it is loaded."""
