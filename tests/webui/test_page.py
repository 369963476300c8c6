"""The page through ``gradio_client``, as docs/webui.md shows it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import httpx2
import pytest

from .media_files import draw_circle, play_beeps
from .stand_in import StandIn

pytestmark = pytest.mark.xdist_group("webui")

DOCS = Path(__file__).resolve().parents[2] / "docs" / "webui.md"


@pytest.fixture(scope="session")
def client(api, pages):
    import gradio_client

    return gradio_client.Client(pages.url(api.url), verbose=False)


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)


def run(example: str, url: str) -> None:
    exec(compile(example.replace("http://127.0.0.1:7860", url), "docs/webui.md", "exec"), {})


def test_the_example_of_the_documentation(api, pages, capsys) -> None:
    run(examples()[0], pages.url(api.url))
    assert capsys.readouterr().out.count(api.engine.answer) == 2


@pytest.mark.slow
def test_the_example_with_files(pages, tmp_path, monkeypatch, capsys) -> None:
    server = StandIn({"senses": ["text", "image", "audio"]})
    monkeypatch.chdir(tmp_path)
    draw_circle(tmp_path / "picture.png")
    play_beeps(tmp_path / "sound.wav")
    run(examples()[1], pages.url(server.url))
    assert capsys.readouterr().out.strip() == server.answer
    parts = server.body["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["image_url", "input_audio", "text"]
    server.stop()


def test_an_error_is_the_callers(client) -> None:
    with pytest.raises(Exception, match="too long for the model"):
        client.predict("x" * 2000, api_name="/chat")


def test_a_picture_is_sent_as_the_api_takes_it(client, tmp_path) -> None:
    """The fake model takes text only, and says so."""
    from gradio_client import handle_file

    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    with pytest.raises(Exception, match=r"image|picture"):
        client.predict("What is this?", [handle_file(tmp_path / "a.png")], api_name="/chat")


def test_files_of_the_machine_stay_there(client) -> None:
    """A caller may claim any path for an upload."""
    claimed = {"path": "/etc/hostname", "meta": {"_type": "gradio.FileData"}, "orig_name": "a.png"}
    calls = f"{client.src}gradio_api/call/chat"
    event = httpx2.post(calls, json={"data": ["What is this?", [claimed], "", None, None, None, None]}).json()
    told = httpx2.get(f"{calls}/{event['event_id']}").text
    assert told.startswith("event: error")


def test_nothing_is_counted_or_shared(client) -> None:
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert client.config["analytics_enabled"] is False
    assert list(client.view_api(return_format="dict", print_info=False)["named_endpoints"]) == ["/chat"]
