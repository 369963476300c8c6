"""Intel Neural Compressor's FP8: its files and measurements."""
