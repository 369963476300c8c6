"""Families that see, and some that hear: a tower, and what stands between it and a language model of another family."""
