"""Hybrids of the delta rule and attention."""
