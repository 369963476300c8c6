"""A page of another site sends JSON as a form to a server without a key, which needs no preflight."""

from __future__ import annotations

import pytest

from lsv_base.processes.visitors import OriginRefused, UnsupportedMediaType, Visitors

FIREFOX = {"host": "localhost:8000", "user-agent": "Mozilla/5.0 (X11; rv:60.0) Gecko/20100101 Firefox/60.0"}
SIMPLE = ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None]


@pytest.mark.parametrize("kind", SIMPLE)
@pytest.mark.parametrize("origin", [None, "null", "https://evil.example"])
def test_simple_requests_of_browsers_are_refused(kind: str | None, origin: str | None) -> None:
    headers = FIREFOX | ({"content-type": kind} if kind else {}) | ({"origin": origin} if origin else {})
    with pytest.raises(OriginRefused):
        Visitors("127.0.0.1").check("POST", headers)


def test_plain_text_is_refused_from_every_client() -> None:
    with pytest.raises(UnsupportedMediaType):
        Visitors("127.0.0.1").check("POST", {"content-type": "text/plain"})


@pytest.mark.parametrize("kind", SIMPLE)
@pytest.mark.parametrize("headers", [{"user-agent": "curl/8.5.0"}, FIREFOX | {"origin": "http://localhost:8000"}])
def test_curl_and_the_servers_own_pages_need_no_content_type(kind: str | None, headers: dict[str, str]) -> None:
    Visitors("127.0.0.1").check("POST", headers | ({"content-type": kind} if kind else {}))


def test_json_from_a_browser_is_accepted() -> None:
    Visitors("127.0.0.1").check("POST", FIREFOX | {"content-type": "application/json"})
