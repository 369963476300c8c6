"""Families that see: a tower over images, and what stands between it and a language model of another family."""
