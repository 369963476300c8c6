"""The attention backend and the layout of its KV cache."""
