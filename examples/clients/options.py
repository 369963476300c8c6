"""Where the server is, and which of its models is asked."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from openai import OpenAI


def connect(about: str | None, arguments: Sequence[str] | None) -> tuple[OpenAI, str]:
    """A client of the server that the arguments name, and the name of its model."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--url", default="http://localhost:8000/v1", help="of the server, ending in /v1")
    parser.add_argument("--model", help="default: the server's first")
    parser.add_argument("--api-key", default="EMPTY")
    given = parser.parse_args(arguments)
    client = OpenAI(base_url=given.url, api_key=given.api_key)
    return client, given.model or client.models.list().data[0].id
