"""The ranks of an engine, as a configuration says they are."""
