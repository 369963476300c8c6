"""The release of vLLM whose names these are; ``docs/decisions.md`` of lsv says why this one."""

__version__ = "0.22.0+lsv"
