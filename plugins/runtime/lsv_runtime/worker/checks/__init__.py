"""Checks of what a step has computed, before others build on it."""
