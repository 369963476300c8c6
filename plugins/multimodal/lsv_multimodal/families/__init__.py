"""The processors of families that take media, and where their items stand in prompts."""
