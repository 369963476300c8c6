"""The chat tab and its conversations."""
