"""Answers of a given form: the seam to grammar back ends, and the engine's side of it."""
