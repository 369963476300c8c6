"""Parsers of answers: calls of tools, and thinking, in the forms that families of models write them in."""
