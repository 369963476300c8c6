"""Weights from the checkpoint to a layer's parameters: sources, names, quantizers, sharding, filling."""
