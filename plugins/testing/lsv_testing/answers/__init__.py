"""For authors of parsers of answers."""
