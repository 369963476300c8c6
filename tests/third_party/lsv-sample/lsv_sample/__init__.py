"""A plugin as a stranger would write it."""
