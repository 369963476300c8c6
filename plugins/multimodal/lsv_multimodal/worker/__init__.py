"""Worker processes that decode and process media, and may be killed at any time."""
