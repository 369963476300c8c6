"""Grammars by llguidance: JSON schemas, regular expressions, choices, Lark and GBNF."""
