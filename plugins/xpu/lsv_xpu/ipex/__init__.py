"""Kernels of intel-extension-for-pytorch."""
