"""Addresses of servers as people type them."""

from __future__ import annotations

import pytest

from lsv.cli.address import server_address
from lsv_base.errors import ConfigError


@pytest.mark.parametrize(
    "given", ["http://h:1", "http://h:1/", "http://h:1/v1", "h:1", "h:1/v1", "http://h:1/v1/", " h:1"]
)
def test_addresses(given: str) -> None:
    assert server_address(given) == "http://h:1"


def test_a_path_before_the_api_is_kept() -> None:
    assert server_address("https://h/llm/v1") == "https://h/llm"


@pytest.mark.parametrize("given", ["ftp://h", "http://", "", "h:port", "http://h:99999"])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="--api must be an http or https address"):
        server_address(given)
