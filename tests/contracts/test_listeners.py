"""Every listener is listed with its protection: host names, pages of other sites, sizes, secrets."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("core", "plugins", "webui", "deploy")

OPENERS = frozenset(
    {
        "bind",
        "listen",
        "create_server",
        "create_unix_server",
        "start_server",
        "start_unix_server",
        "create_datagram_endpoint",
        "launch",
        "run_app",
        "start_http_server",
        "make_server",
        "serve_forever",
        "HTTPServer",
        "ThreadingHTTPServer",
        "TCPServer",
        "ThreadingTCPServer",
        "UnixStreamServer",
        "TCPSite",
        "UnixSite",
        "TCPStore",
        "Listener",
        "WSGIServer",
        "run_simple",
    }
)
"""Names of functions, methods and classes that open a listener, in the standard library and HTTP frameworks."""


class Web(NamedTuple):
    """A listener that speaks HTTP, and the tests of its gate."""

    host: str
    origin: str
    size: str


class Guarded(NamedTuple):
    """A listener that a browser can't use, and its protection."""

    by: str
    test: str = ""


class NoListener(NamedTuple):
    """A function that is named like an opener, and what it does instead."""

    what: str


_ACCESS = "tests/plugins/api/test_access.py"
_PAGE = "tests/abuse/test_page_gate.py"
_PROXY = "tests/abuse/test_proxy.py"
_API = Web(
    f"{_ACCESS}::test_a_page_can_not_give_the_server_its_own_name",
    f"{_ACCESS}::test_pages_of_others_can_not_post",
    "tests/plugins/api/test_errors.py::test_body_limit",
)
_WEB_PAGE = Web(
    f"{_PAGE}::test_a_foreign_host_name_is_refused",
    f"{_PAGE}::test_pages_of_other_sites_are_refused",
    f"{_PAGE}::test_large_bodies_are_refused_by_their_length",
)
_PROXIED = Web(
    f"{_PROXY}::test_pages_of_other_sites_are_refused",
    f"{_PROXY}::test_pages_of_other_sites_are_refused",
    f"{_PROXY}::test_lengths_are_checked_before_anything_is_read",
)
_DOOR = Guarded(
    "LSV_CLUSTER_KEY, before anything is read", "tests/abuse/test_door.py::test_silent_connections_delay_no_other"
)
_PRIVATE = Guarded(
    "a socket in a folder of this user's alone", "tests/core/engine/test_process.py::test_the_socket_is_private"
)

KNOWN: dict[str, Web | Guarded | NoListener] = {
    "plugins/runtime/lsv_runtime/devices/collectives.py::open_store": Guarded(
        "the address of a trial; engines use files or serve_store"
    ),
    "plugins/runtime/lsv_runtime/devices/collectives.py::serve_store": Guarded(
        "one address of a network of the machines' own"
    ),
    "core/lsv/engine/replicas/nodes/reception.py::Reception.__aenter__": _DOOR,
    "core/lsv/engine/replicas/nodes/stand_in.py::StandIn.open": _PRIVATE,
    "core/lsv/engine/supervision/process.py::_listen": _PRIVATE,
    "core/lsv/processes/nodes/door.py::listen": _DOOR,
    "core/lsv_base/processes/ports.py::_is_free": NoListener("looks whether a port is free"),
    "core/lsv_base/processes/ports.py::free_port": NoListener("looks for a free port"),
    "core/lsv/settings/host_ip.py::check_host_ip": NoListener("looks whether an address is this machine's"),
    "deploy/disaggregated/proxy.py::Server": _PROXIED,
    "deploy/disaggregated/proxy.py::main": _PROXIED,
    "plugins/api/lsv_api/listening.py::bind": _API,
    "plugins/api/lsv_api/listening.py::bind_path": _API,
    "plugins/api/lsv_api/server.py::Server._listen": _API,
    "plugins/kv_offload/lsv_kv_offload/nearby.py::listen": _DOOR,
    "plugins/kv_offload/lsv_kv_offload/server.py::Server.__init__": _DOOR,
    "plugins/multimodal/lsv_multimodal/families/omni/thinker.py::OmniProcessor._listen": NoListener("prepares a sound"),
    "webui/lsv_webui/page.py::check_address": NoListener("closed at once: looks whether the port is free"),
    "webui/lsv_webui/page.py::launch": _WEB_PAGE,
}


def openers(source: str) -> Iterator[str]:
    """The qualified names of functions that open listeners, and of classes derived from a listener."""
    yield from _walk(ast.parse(source), ())


def _walk(node: ast.AST, inside: tuple[str, ...]) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            within = (*inside, child.name)
            if isinstance(child, ast.ClassDef) and any(_name(base) in OPENERS for base in child.bases):
                yield ".".join(within)
            yield from _walk(child, within)
            continue
        if isinstance(child, ast.Call) and _opens(child):
            yield ".".join(inside) or "<module>"
        yield from _walk(child, inside)


def _opens(call: ast.Call) -> bool:
    """Whether a call may open a listener, by its name, and for ambiguous names by its arguments."""
    match _name(call.func):
        case "bind" | "listen":  # a socket's take an address or nothing
            return len(call.args) <= 1 and not call.keywords
        case "launch":  # Gradio's
            return any(keyword.arg in ("server_name", "server_port") for keyword in call.keywords)
        case name:
            return name in OPENERS


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def found() -> set[str]:
    files = [file for part in PARTS for file in (ROOT / part).rglob("*.py") if "testing" not in file.parts]
    return {f"{file.relative_to(ROOT)}::{where}" for file in files for where in openers(file.read_text())}


def test_every_listener_is_listed() -> None:
    assert found() - set(KNOWN) == set(), "say in KNOWN what guards it, and give an HTTP listener the tests of a gate"
    assert set(KNOWN) - found() == set(), "it is gone"


def test_every_gate_has_its_tests() -> None:
    named = {test for guard in KNOWN.values() for test in guard if "::" in test}
    for test in named:
        file, _, function = test.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert function in names, test


@pytest.mark.parametrize(
    "planted",
    [
        "import socket\ndef f():\n    socket.create_server(('', 80))",
        "def f(sock):\n    sock.bind(('', 80))\n    sock.listen()",
        "import asyncio\nasync def f():\n    await asyncio.start_server(g, '', 80)",
        "from http.server import HTTPServer\ndef f():\n    HTTPServer(('', 80), H).serve_forever()",
        "from http.server import ThreadingHTTPServer\nclass f(ThreadingHTTPServer):\n    pass",
        "def f(page):\n    page.queue().launch(server_name='0.0.0.0')",
        "import prometheus_client\ndef f():\n    prometheus_client.start_http_server(9)",
        "from torch.distributed import TCPStore\nf = lambda: TCPStore('0.0.0.0', 1, is_master=True)",
    ],
)
def test_a_planted_listener_is_found(planted: str) -> None:
    assert set(openers(planted)) & {"f", "<module>"}
