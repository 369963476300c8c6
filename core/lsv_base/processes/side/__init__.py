"""Side processes: confined children that work on what strangers send, and may be killed at any time."""
