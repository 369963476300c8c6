"""The version of lsv; the one place that states it beside ``pyproject.toml``."""

__version__ = "0.1.0"
