"""Grammars by xgrammar, where that package is installed."""
