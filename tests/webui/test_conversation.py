"""Conversations: titles, going back, what a browser keeps and what is sent of it."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from lsv.errors import BadRequest
from lsv_webui.conversation import KEPT, Chat, Message, forget, keep, new_chat, read_chats
from lsv_webui.parts import content_part, request_messages
from lsv_webui.view import entries
from lsv_webui.wishes import NUMBERS, Wishes


def talk(*texts: str) -> Chat:
    roles = ("user", "assistant")
    return Chat(id="a", messages=[Message(role=roles[i % 2], text=text) for i, text in enumerate(texts)])


@pytest.fixture
def uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    (tmp_path / "uploads").mkdir()
    return tmp_path / "uploads"


def test_a_title_is_the_beginning_of_the_first_question() -> None:
    assert talk("  Why is\nthe sky blue? ").title == "Why is the sky blue?"
    assert talk("x" * 99).title == "x" * 41 + "…"
    assert new_chat().title == "New chat"


@pytest.mark.parametrize("index", [2, 3])
def test_going_back_ends_with_the_question(index: int) -> None:
    chat = talk("one", "1", "two", "2", "three", "3")
    question = chat.back_to(index)
    assert question is not None
    assert [message.text for message in chat.messages] == ["one", "1", "two"]


def test_the_chat_that_changed_comes_first_and_the_oldest_go() -> None:
    saved: list[object] = []
    for number in range(KEPT + 5):
        saved = keep(saved, Chat(id=str(number), messages=[Message(role="user", text="hi")]))
    assert len(saved) == KEPT
    again = keep(saved, read_chats(saved)[3])
    assert [chat.id for chat in read_chats(again)][:2] == [str(KEPT + 1), str(KEPT + 4)]
    assert len(forget(again, read_chats(again)[0])) == KEPT - 1


def test_answers_that_have_not_begun_are_not_kept() -> None:
    chat = talk("one", "1", "two", "")
    assert [message.text for message in read_chats(keep([], chat))[0].messages] == ["one", "1", "two"]
    assert len(chat.messages) == 4


@pytest.mark.parametrize("kept", [None, "x", [{"id": 3}], [{"messages": []}], {"id": "a"}])
def test_what_another_page_wrote_is_dropped(kept: object) -> None:
    assert read_chats(kept) == []


def test_questions_without_an_answer_are_not_sent_again() -> None:
    chat = talk("lost", "", "kept", "yes", "now")
    chat.messages[1].error = "No server answers"
    assert [sent["content"] for sent in request_messages(chat, "Be short.")] == ["Be short.", "kept", "yes", "now"]
    chat.messages.append(Message(role="user", text="and now"))
    assert [sent["content"] for sent in request_messages(chat)] == ["kept", "yes", "and now"]


@pytest.mark.parametrize(
    ("name", "kind", "place"),
    [("a.png", "image_url", "url"), ("a.mp4", "video_url", "url"), ("a.wav", "input_audio", "data")],
)
def test_uploads_become_content_parts(uploads: Path, name: str, kind: str, place: str) -> None:
    (uploads / name).write_bytes(b"bytes")
    part = content_part(str(uploads / name))
    assert part["type"] == kind
    assert part[kind][place].endswith(base64.b64encode(b"bytes").decode())


def test_only_uploads_are_read(uploads: Path, tmp_path: Path) -> None:
    """A browser may claim any path for a file of its conversation."""
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"secret")
    for path in (secret, uploads / ".." / "secret.png", uploads / "gone.png"):
        chat = Chat(id="a", messages=[Message(role="user", files=(str(path),))])
        with pytest.raises(BadRequest, match=r"no longer on the server"):
            request_messages(chat)
        assert "no longer on the server" in str(entries(chat))
    link = uploads / "link.png"
    link.symlink_to(secret)
    with pytest.raises(BadRequest):
        content_part(str(link))


def test_lost_files_of_earlier_questions_are_left_out(uploads: Path) -> None:
    (uploads / "b.png").write_bytes(b"bytes")
    files = [(str(uploads / "gone.png"),), (), (str(uploads / "b.png"),)]
    chat = talk("What is this?", "A cat.", "And this?")
    for message, paths in zip(chat.messages, files, strict=True):
        message.files = paths
    first, _, last = request_messages(chat)
    assert first["content"] == "What is this?"
    assert [part["type"] for part in last["content"]] == ["image_url", "text"]


def test_other_files_are_refused_by_name(uploads: Path) -> None:
    (uploads / "a.txt").write_bytes(b"text")
    with pytest.raises(BadRequest, match=r"a\.txt is neither a picture nor a sound nor a video"):
        content_part(str(uploads / "a.txt"))


def test_errors_are_shown_as_text() -> None:
    chat = Chat(id="a", messages=[Message(role="assistant", error="<b>no</b>")])
    assert "&lt;b&gt;no&lt;/b&gt;" in entries(chat)[0]["content"]


def test_settings_become_fields() -> None:
    numbers = {"temperature": "0,5", "max_tokens": "20"}
    wishes = Wishes.of(["m", None, "", '{"type": "object"}', *(numbers.get(number.field, "") for number in NUMBERS)])
    fields = wishes.fields()
    assert fields.pop("response_format")["json_schema"]["schema"] == {"type": "object"}
    assert fields == {"model": "m", "temperature": 0.5, "max_tokens": 20}


def test_what_is_no_number_is_told() -> None:
    for text in ("warm", "1.5"):
        values = [text if number.field == "seed" else "" for number in NUMBERS]
        with pytest.raises(BadRequest, match=r"Seed under Settings must be a whole number"):
            Wishes.of(["m", "", "", "", *values]).fields()
