"""Parsers and grammars that are derived from what a chat template writes, for families that no plugin names."""
