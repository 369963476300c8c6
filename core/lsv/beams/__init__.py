"""Beam search: the likeliest answers to a prompt, found in rounds of one token."""
