"""Where ``lsv`` begins. Imports nothing before it can end quietly on Ctrl-C."""

from __future__ import annotations


def main() -> int:
    """Run the command line of this process; returns its exit code."""
    try:
        from lsv.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return 130
