"""``python -m vllm.entrypoints.openai.api_server --model X`` starts ``lsv serve --model X``."""

from __future__ import annotations

import sys

from lsv.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main(["serve", *sys.argv[1:]]))
