"""Linear layers over Gaudi's 8-bit and 4-bit weights."""
