"""The attention of flash-attn 2 and 3."""
