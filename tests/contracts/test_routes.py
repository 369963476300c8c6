"""Every route has a line in tests/abuse/routes.tsv: who may call it, the limit of its body, and its abuse tests.

The test checks the line against a server.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from sanic import Sanic

from lsv.engine.client import Service
from lsv_api.app import create_app
from lsv_api.limits import Limits
from lsv_api.options import ApiOptions
from lsv_testing.fakes.client import FakeClient
from suite.sites import start as start

from .test_reliability import ROOT, names

TABLE = ROOT / "tests" / "abuse" / "routes.tsv"
CAPTURE = re.compile(r"<\w+:\w+>")
SMALL, LARGE = 2000, 5000
"""The limits of a body in bytes, without and with media."""
BOUNDS = {"api-max-text-mb": SMALL, "max-body-mb": LARGE, "none": None}


class Line(NamedTuple):
    route: str
    who: str
    body: str
    attempts: str
    tests: tuple[str, ...]

    @property
    def method(self) -> str:
        return self.route.partition(" ")[0]

    @property
    def path(self) -> str:
        return CAPTURE.sub("fake", self.route.partition(" ")[2])


def read(path: Path) -> list[Line]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t"))[1:]
    return [Line(route, who, body, attempts, tuple(tests.split())) for route, who, body, attempts, tests in rows]


LINES = read(TABLE)


async def served() -> set[str]:
    """The routes of a server, each once: a trailing slash makes no difference."""
    return routes_of(create_app(Service({"fake": FakeClient()}), ApiOptions(port=0)))


def routes_of(app: Sanic) -> set[str]:
    found = set()
    for route in app.router.routes:
        path = "/" + route.path.removesuffix("/")
        found |= {f"{method} {path}" for method in route.methods if method != "HEAD"}
    return found


def unlisted(routes: Iterable[str], lines: Iterable[Line]) -> list[str]:
    return sorted(set(routes) - {line.route for line in lines})


async def test_every_route_has_a_line() -> None:
    routes = await served()
    assert unlisted(routes, LINES) == [], f"say in {TABLE.relative_to(ROOT)} what a hostile client may try there"
    assert len(LINES) == len(routes), "a line is of no route, or there twice"


async def test_a_route_without_a_line_is_seen() -> None:
    app = create_app(Service({"fake": FakeClient()}), ApiOptions(port=0))
    app.add_route(lambda request: None, "/v1/files/<id>", methods=["GET", "PUT"])
    assert unlisted(routes_of(app), LINES) == ["GET /v1/files/<id:str>", "PUT /v1/files/<id:str>"]


def missing(lines: Iterable[Line]) -> list[str]:
    """Listed tests that do not exist; a line without tests counts as well."""
    found = []
    for line in lines:
        for file, _, name in (test.partition("::") for test in line.tests or ("none::none",)):
            if not name.startswith("test_") or name not in names(ROOT / file):
                found.append(f"{line.route}: {file}::{name}")
    return found


def test_tests_that_lines_name_exist() -> None:
    assert missing(LINES) == []
    assert all(line.attempts for line in LINES)
    gone = Line("GET /", "key", "none", "x", ("tests/contracts/test_routes.py::test_gone",))
    assert len(missing([gone, gone._replace(tests=())])) == 2


@pytest.mark.parametrize("line", LINES, ids=[line.route for line in LINES])
async def test_who_may_call_it_is_true(start, line: Line) -> None:
    site = await start(
        api_keys=("user",), admin_keys=("operator",), protect_metrics=line.who == "key", runtime_adapters=True
    )
    without, user, operator = [
        (await site.http.request(line.method, line.path, headers=headers)).status_code
        for headers in ({}, {"authorization": "Bearer user"}, {"authorization": "Bearer operator"})
    ]
    open_to_all = line.who in ("anybody", "monitoring")
    assert (without == 401) is not open_to_all
    assert (user == 403) is (line.who == "operator")
    assert operator not in (401, 403)
    if line.who == "monitoring":
        closed = await start(api_keys=("user",), protect_metrics=True)
        assert (await closed.http.get(line.path)).status_code == 401


@pytest.mark.parametrize("line", LINES, ids=[line.route for line in LINES])
async def test_the_bound_of_a_body_is_true(start, line: Line) -> None:
    limit = BOUNDS[line.body]
    assert limit is not None or line.method != "POST", "every POST has a bound"
    assert limit is None or line.method != "GET", "a GET has no body"
    if limit is None:
        return
    engine = FakeClient()
    engine.media = SimpleNamespace(transcriber=None, allowed=(), marks={})  # type: ignore[assignment]
    limits = Limits(text_bytes=SMALL, body_bytes=LARGE)
    site = await start(engine, limits=limits, runtime_adapters=True)
    for size, refused in ((limit + 1, True), (limit, False)):
        answer = await site.http.request(
            line.method, line.path, content=b" " * size, headers={"content-type": "application/json"}
        )
        assert (answer.status_code == 413 and f"--{line.body}" in answer.text) is refused
