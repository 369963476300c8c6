"""Gemma 1 to 4, the text models."""
