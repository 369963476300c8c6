"""Conversations: titles, going back, what a browser keeps and what is sent of it."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from lsv_base.errors import BadRequest
from lsv_webui.api import Model
from lsv_webui.chat import media
from lsv_webui.chat.conversation import Chat, Message, ToolCall, read_index, read_record
from lsv_webui.chat.parts import content_part, request_messages, sent_kinds
from lsv_webui.chat.request_fields import NUMBERS, RequestFields
from lsv_webui.chat.view import entries, message_at


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
    assert Chat().title == "New chat"


@pytest.mark.parametrize("index", [2, 3])
def test_going_back_ends_with_the_question(index: int) -> None:
    chat = talk("one", "1", "two", "2", "three", "3")
    question = chat.back_to(index)
    assert question is not None
    assert [message.text for message in chat.messages] == ["one", "1", "two"]


def test_a_record_is_read_as_it_was_kept() -> None:
    chat = talk("one", "1")
    chat.messages[1].note = "2 tokens"
    record = chat.record()
    assert read_record(record) == chat
    assert json.loads(record)["title"] == "one"
    assert chat.at > 0


def test_answers_that_have_not_begun_are_not_kept_and_others_are_marked() -> None:
    chat = talk("one", "1", "two", "")
    chat.messages[1].note = "2 tokens"
    kept = read_record(chat.record())
    assert kept is not None
    assert [message.text for message in kept.messages] == ["one", "1", "two"]
    assert len(chat.messages) == 4
    chat.messages[-1].text = "par"
    kept = read_record(chat.record())
    assert kept is not None
    assert [message.note for message in kept.messages] == ["", "2 tokens", "", "stopped"]


def test_an_abandoned_answer_is_marked_wherever_it_is() -> None:
    chat = talk("one", "par", "two", "2")
    chat.messages[-1].note = "2 tokens"
    assert chat.interrupt()
    assert [message.note for message in chat.messages] == ["", "stopped", "", "2 tokens"]
    assert not chat.interrupt()


@pytest.mark.parametrize("kept", ["", "null", "x", "[]", '{"id": 3}', '{"id": "a", "messages": [{}]}'])
def test_what_another_page_wrote_is_dropped(kept: str) -> None:
    assert read_record(kept) is None


def test_an_index_is_names_and_titles() -> None:
    assert read_index('[["a", "One"]]') == [("a", "One")]
    assert read_index("") == read_index('{"a": 1}') == []


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


@pytest.mark.parametrize(
    ("taken", "words"),
    [
        ({"text", "image", "audio", "video"}, "m takes text, images, audio and videos"),
        ({"text", "audio"}, "m takes text and audio, but no images or videos"),
        ({"text"}, "m takes text only"),
        (None, ""),
    ],
)
def test_what_a_model_takes_in_words(taken: set[str] | None, words: str) -> None:
    assert media.hint(Model("m", None if taken is None else frozenset(taken))) == words


def test_files_a_model_does_not_take_are_refused(uploads: Path) -> None:
    (uploads / "a.wav").write_bytes(b"bytes")
    chat = Chat(messages=[Message(role="user", text="What is this?", files=(str(uploads / "a.wav"),))])
    kinds = sent_kinds(request_messages(chat, "Be brief."))
    assert kinds == {"audio"}
    media.check(Model("ears", frozenset({"text", "audio"})), kinds)
    media.check(Model("silent"), kinds)
    with pytest.raises(BadRequest, match=r"eyes takes text and images, .* Choose a model that takes audio"):
        media.check(Model("eyes", frozenset({"text", "image"})), kinds)


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
    with pytest.raises(BadRequest, match=r"a\.txt is not an image, audio or video file"):
        content_part(str(uploads / "a.txt"))


def test_errors_are_shown_as_text() -> None:
    chat = Chat(id="a", messages=[Message(role="assistant", error="<b>no</b>")])
    assert "&#60;b&#62;no&#60;&#47;b&#62;" in entries(chat)[0]["content"]


def test_only_the_answer_is_in_what_is_copied_and_sent_back() -> None:
    answer = Message(role="assistant", text="  A cat.", thinking="Ears, tail.", thinking_seconds=2.5, note="3 tokens")
    chat = Chat(
        id="a", messages=[Message(role="user", text="What is this?"), answer, Message(role="user", text="Why?")]
    )
    _, thinking, text, state, _ = entries(chat)
    assert thinking["metadata"]["title"] == "Thought for 2.5 s"
    assert text["content"] == [{"type": "text", "text": "  A cat."}]
    assert "3 tokens" in state["content"]
    assert [message_at(chat, index) for index in range(6)] == [0, 1, 1, 1, 2, 3]
    assert request_messages(chat)[1] == {"role": "assistant", "content": "  A cat."}


def test_tool_calls_are_shown_and_not_sent_back_before_they_ran() -> None:
    """They would have to be followed by what the tools answered."""
    calls = [ToolCall(name="look", arguments='{"at": "``` é"}'), ToolCall(name="go", arguments='{"to')]
    chat = talk("one", "", "two")
    chat.messages[1].calls = calls
    shown = entries(chat)[1]["content"][0]["text"]
    assert '**`look`**\n\n````json\n{\n  "at": "``` é"\n}\n````' in shown
    assert '**`go`**\n\n```json\n{"to\n```' in shown
    assert request_messages(chat) == [{"role": "user", "content": "two"}]
    kept = read_record(chat.record())
    assert kept is not None
    assert kept.messages[1].calls == calls


@pytest.mark.row("F-893")
def test_settings_become_fields() -> None:
    numbers = {"temperature": "0,5", "max_tokens": "20", "stop_token_ids": "128009, 128001"}
    fields = RequestFields.of(
        ["m", None, "", '{"type": "object"}', None, None, *(numbers.get(number.field, "") for number in NUMBERS)]
    )
    found = fields.as_json()
    assert found.pop("response_format")["json_schema"]["schema"] == {"type": "object"}
    assert found == {"model": "m", "temperature": 0.5, "max_tokens": 20, "stop_token_ids": [128009, 128001]}


def test_a_value_that_is_not_a_number_is_reported() -> None:
    for text in ("warm", "1.5"):
        values = [text if number.field == "seed" else "" for number in NUMBERS]
        with pytest.raises(BadRequest, match=r"Seed under Settings must be a whole number"):
            RequestFields.of(["m", "", "", "", [], False, *values]).as_json()
    values = ["1, two" if number.several else "" for number in NUMBERS]
    with pytest.raises(BadRequest, match=r"Stop at token ids under Settings must be whole numbers, not '1, two'"):
        RequestFields.of(["m", "", "", "", [], False, *values]).as_json()
