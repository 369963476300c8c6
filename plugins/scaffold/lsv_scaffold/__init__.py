"""Skeletons of plugins behind ``lsv new``."""
