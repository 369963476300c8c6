"""What is behind the device's KV cache: which contents of blocks are in host memory, and which are kept elsewhere."""
