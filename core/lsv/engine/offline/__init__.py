"""Engines in the process of those who use them, stepped by hand."""
