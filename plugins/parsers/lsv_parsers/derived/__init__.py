"""Parsers and grammars derived from a chat template, for families that no plugin knows."""
