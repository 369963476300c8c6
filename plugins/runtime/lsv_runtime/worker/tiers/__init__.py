"""Copies of blocks between a device's KV cache, host memory and what keeps contents elsewhere."""
