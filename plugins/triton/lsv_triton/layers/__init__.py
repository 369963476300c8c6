"""Norms, rope, activations, adapters, and decoder layers made of them."""
