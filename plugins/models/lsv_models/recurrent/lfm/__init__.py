"""Gated short convolutions, and attention in a few layers."""
