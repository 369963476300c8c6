"""Paged attention: Triton kernels, and the same in plain torch."""
