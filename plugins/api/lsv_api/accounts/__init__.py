"""Whose key a request carries, and what its owner may use."""
