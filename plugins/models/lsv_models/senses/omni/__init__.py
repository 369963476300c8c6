"""Models that see, hear and speak, of which the part that writes text is run."""
