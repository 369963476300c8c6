"""Programs that start servers."""
