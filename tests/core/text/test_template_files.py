"""The files of a folder from which its chat template is read."""

import json
import logging
from pathlib import Path

import pytest

from lsv.text.chat_template import read_templates


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"chat_template.json": "json"}, "json"),
        ({"chat_template.json": "json", "tokenizer_config.json": "config"}, "json"),
        ({"chat_template.json": "json", "chat_template.jinja": "jinja"}, "json"),
        ({"chat_template.json": "json", "processor_config.json": "processor"}, "processor"),
        ({"chat_template.jinja": "jinja", "tokenizer_config.json": "config"}, "jinja"),
        ({"tokenizer_config.json": "config"}, "config"),
    ],
)
def test_the_template_of_a_processor_is_that_of_transformers(
    files: dict[str, str], expected: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    from transformers import ProcessorMixin

    caplog.set_level(logging.INFO)
    for name, text in {"preprocessor_config.json": "", **files}.items():
        content = text if name.endswith(".jinja") else json.dumps({"chat_template": text} if text else {})
        (tmp_path / name).write_text(content)
    declared = files.get("tokenizer_config.json")
    assert read_templates(tmp_path, declared) == {"default": expected}
    assert bool(caplog.records) == (len(files) == 2 and declared is not None and expected == "json")
    theirs, _ = ProcessorMixin.get_processor_dict(tmp_path)
    assert theirs.get("chat_template") in (None, expected)
    if expected != "config":
        assert theirs["chat_template"] == expected


def test_a_tokenizer_alone_has_no_template_of_a_processor(tmp_path: Path):
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert read_templates(tmp_path, None) == {}
