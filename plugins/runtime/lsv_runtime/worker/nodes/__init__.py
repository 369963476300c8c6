"""Ranks on several machines, which join the engine of the first."""
