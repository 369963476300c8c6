"""The entry point of ``lsv``. Ctrl-C ends it quietly, also during imports."""

from __future__ import annotations


def main() -> int:
    """Run the command line of this process; returns its exit code."""
    try:
        from lsv.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return 130
