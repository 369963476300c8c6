"""Choosing and describing tokens on the device."""
