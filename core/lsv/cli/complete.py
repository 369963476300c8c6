"""``lsv complete``."""

from lsv.cli.chat import run_complete as run

__all__ = ["run"]
