"""The options of media, as flags, variables and arguments give them; and templates that know parts alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lsv.media.options import Limits, MediaOptions
from lsv.settings import Declared, gather, options
from lsv.settings.flags import parse
from lsv.text.chat_template import ChatTemplates
from lsv_base.errors import ConfigError

DECLARED = Declared(options.for_scope("serve"))


def read(*arguments: str) -> MediaOptions:
    return MediaOptions.from_settings(gather(DECLARED, parse(arguments, DECLARED).given))


def test_nothing_is_reachable_by_default() -> None:
    assert read() == MediaOptions(limits=Limits(bytes=64 << 20))
    assert (read().folder, read().domains, read().allowed("image")) == (None, (), 16)


@pytest.mark.row("F-244", "F-704")
@pytest.mark.parametrize(
    "text", ["image=2,audio=0", '{"image": 2, "audio": 0}', "image=2, audio=0", '{"image":"2","audio":0}']
)
def test_counts_in_every_spelling(text: str) -> None:
    found = read("--limit-mm-per-prompt", text)
    assert (found.allowed("image"), found.allowed("audio"), found.allowed("video")) == (2, 0, 16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--limit-mm-per-prompt", "image=x"], "whole numbers by name"),
        (["--limit-mm-per-prompt", "image"], "whole numbers by name"),
        (["--limit-mm-per-prompt", "image=-1"], "whole numbers by name"),
        (["--limit-mm-per-prompt", '{"image": true}'], "whole numbers by name"),
        (["--limit-mm-per-prompt", "{image"], "JSON"),
        (["--limit-mm-per-prompt", "smell=1"], "unknown kind of media 'smell'"),
        (["--mm-processor-kwargs", "[1]"], "must be a JSON object"),
        (["--allowed-local-media-path", "/no/such/folder"], "is not a folder"),
        (["--media-timeout", "0"], "at least 0.1"),
        (["--media-memory-mb", "1"], "at least 64"),
        (["--max-image-pixels", "0"], "at least 1"),
        (["--max-video-frames", "1.5"], "whole number"),
        (["--confinement", "some"], "one of auto, require, off"),
    ],
)
def test_what_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(*arguments)


@pytest.mark.row("F-843", "F-975", "F-1017")
def test_limits_of_media() -> None:
    found = read(
        "--max-media-mb", "2", "--max-image-pixels", "1000", "--max-media-seconds", "9", "--max-video-frames", "3",
        "--max-decoded-mb", "4", "--media-memory-mb", "128", "--confinement", "require",
    )  # fmt: skip
    mebibyte = 1 << 20
    assert found.limits == Limits(
        bytes=2 * mebibyte, pixels=1000, seconds=9.0, frames=3, decoded=4 * mebibyte, memory=128 * mebibyte
    )
    assert found.confinement == "require"
    assert dict(found.fetch_seconds) == {"image": 5.0, "audio": 10.0, "video": 30.0}


@pytest.mark.row("F-221", "F-843", "F-975", "F-702")
def test_flags_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_IMAGE_FETCH_TIMEOUT", "7")
    found = read(
        "--allowed-local-media-path", str(tmp_path), "--allowed-media-domains", "A.example,*.b.example",
        "--mm-processor-kwargs", '{"num_crops": 4}', "--max-media-mb", "1", "--audio-fetch-timeout", "3",
    )  # fmt: skip
    assert found.folder == str(tmp_path)
    assert found.domains == ("a.example", "*.b.example")
    assert found.processor == {"num_crops": 4}
    assert found.limits.bytes == 1 << 20
    assert dict(found.fetch_seconds) == {"image": 7.0, "audio": 3.0, "video": 30.0}


PARTS = "{% for m in messages %}{% for p in m['content'] %}{{ p['type'] }}{{ p['text'] }}{% endfor %}{% endfor %}"
EITHER = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}" + PARTS + "{% endif %}{% endfor %}"
)
TEXT = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "content", "expected"),
    [
        (PARTS, "hi", "texthi"),
        (PARTS, [{"type": "text", "text": "hi"}, {"type": "image"}], "texthiimage"),
        (EITHER, "hi", "hi"),
        (TEXT, "hi", "hi"),
        (TEXT, [{"type": "text", "text": "hi"}], "hi"),
    ],
)
def test_content_has_the_form_a_template_knows(template: str, content: Any, expected: str) -> None:
    messages = [{"role": "user", "content": content}]
    assert ChatTemplates({"default": template}, {}).render(messages) == expected
