"""Formats of quantized checkpoints."""
