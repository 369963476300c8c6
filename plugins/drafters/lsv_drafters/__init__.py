"""Drafters: by what followed before, by heads on a model's states, by a smaller model."""
