"""How the page is started: flags, the key it is lent, what is refused."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
from typing import Any

import pytest

from lsv.cli.context import CommandContext
from lsv_base.errors import ConfigError
from lsv_webui.frontend import page_options
from lsv_webui.options import PageOptions, require_gradio
from lsv_webui.page import check_address


def served(*arguments: str) -> dict[str, Any]:
    settings = CommandContext.open(arguments).settings(arguments, scope="serve")
    return dict(settings)


def test_the_switch() -> None:
    assert served()["webui.enabled"] is False
    assert served("--webui")["webui.enabled"] is True


def test_the_page_gets_the_key_on_a_loopback_address_only() -> None:
    assert page_options(served("--api-key", "a,b", "--port", "81")) == PageOptions(
        server="http://127.0.0.1:81", api_key="a"
    )
    for host in ("0.0.0.0", "10.0.0.3", "127.example.org"):
        assert page_options(served("--api-key", "a", "--webui-host", host)).api_key is None
    shared = served("--api-key", "a", "--webui-host", "0.0.0.0", "--webui-api-key", "b")
    assert page_options(shared).api_key == "b"


@pytest.mark.parametrize(
    ("host", "server"),
    [("0.0.0.0", "http://127.0.0.1:8000"), ("::", "http://[::1]:8000"), ("10.0.0.3", "http://10.0.0.3:8000")],
)
def test_the_page_reaches_its_server(host: str, server: str) -> None:
    assert page_options(served("--host", host)).server == server


def test_unsupported_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="certificate"):
        page_options(served("--ssl-certfile", "a", "--ssl-keyfile", "b"))
    with pytest.raises(ConfigError, match="port"):
        page_options(served("--port", "0"))


def test_a_missing_gradio_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'pip install -e ".\[webui\]"'):
        require_gradio()


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"can't listen on 127.0.0.1:{port}: Address already in use; choose"):
            check_address("127.0.0.1", port)


def test_starting_costs_no_gradio() -> None:
    script = (
        "import sys, lsv_webui.plugin, lsv_webui.frontend, lsv_webui.command, lsv_webui.page\n"
        "assert 'gradio' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
