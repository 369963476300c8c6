"""Models that read the whole text again for every token."""
