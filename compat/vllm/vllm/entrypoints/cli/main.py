"""The command ``vllm``: lsv's, with the same arguments."""

from __future__ import annotations

from lsv.cli.entry import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())
