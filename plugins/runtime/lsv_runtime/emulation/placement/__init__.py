"""Placement of tensors in an emulation: those of a device are told from those of the host."""
