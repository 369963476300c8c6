"""What makes vectors of pixels and sound, apart from the models that take them in."""
