"""Chat templates that lsv has, and those of a tokenizer, by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

import lsv_demo
from lsv.text.shipped_templates import TEMPLATES, read_template
from lsv.text.tokenizer import Tokenizer
from lsv_base.errors import BadRequest, ConfigError

DEMO = Path(lsv_demo.__file__).parent / "checkpoint"
NAMES = sorted(file.stem for file in TEMPLATES.glob("*.jinja"))
PLAIN = ("baichuan2", "chatml", "falcon", "falcon_180b", "llava")
"""Those that know no tools."""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'The "weather" of a city <b>',
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
CALLS = [
    {"id": f"call00000{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
    for index, (name, arguments) in enumerate([("get_weather", {"city": "Zürich"}), ("now", {})])
]
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": CALLS},
    {"role": "tool", "name": "get_weather", "tool_call_id": "call000000", "content": "sunny"},
    {"role": "tool", "name": "now", "tool_call_id": "call000001", "content": "noon"},
    {"role": "assistant", "content": "Sunny, at noon."},
    {"role": "user", "content": "Thanks."},
]


@pytest.fixture(scope="module")
def reference() -> transformers.PreTrainedTokenizerFast:
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(DEMO / "tokenizer.json"), bos_token="<|im_start|>", eos_token="<|im_end|>"
    )


@pytest.mark.row("F-180", "F-183")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["alone", "with tools"])
@pytest.mark.parametrize("length", [2, 5, 7])
def test_prompts_have_the_ids_that_transformers_gives_them(name, tools, length, reference, tmp_path):
    if tools is None:
        conversation = [message for message in CONVERSATION[:length] if message["role"] in ("system", "user")]
    else:
        conversation = CONVERSATION[:length]
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps({"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}))
    (tmp_path / "tokenizer.json").write_bytes((DEMO / "tokenizer.json").read_bytes())
    tokenizer = Tokenizer.load(tmp_path, chat_template=name)
    text = tokenizer.render_chat(conversation, tools=tools)
    expected = reference.apply_chat_template(
        conversation, tools=tools, chat_template=read_template(name), add_generation_prompt=True, return_dict=False
    )
    assert tokenizer.encode(text, add_special_tokens=False) == expected
    for message in conversation:
        assert message["content"] in text
    if tools and name not in PLAIN:
        assert "get_weather" in text


@pytest.mark.row("F-183")
def test_llava_s_images_stand_before_the_text():
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image"}]
    tokenizer = Tokenizer.load(DEMO, chat_template="llava")
    text = tokenizer.render_chat([{"role": "user", "content": parts}])
    assert text == "USER: <image>\nWhat is this?\nASSISTANT:"


@pytest.mark.row("F-179", "F-180", "F-973")
def test_mistral_s_ids_have_nine_characters():
    tokenizer = Tokenizer.load(DEMO, chat_template="mistral")
    long = json.loads(json.dumps(CONVERSATION).replace("call00000", "call_of_a_long_id_0123456789abcde"))
    text = tokenizer.render_chat(long, tools=TOOLS)
    assert '"id": "89abcde0"' not in text
    assert '"call_id": "9abcde0"' not in text
    assert text.count("789abcde0") == 2
    short = json.loads(json.dumps(CONVERSATION).replace("call00000", "c"))
    with pytest.raises(BadRequest, match="nine characters"):
        tokenizer.render_chat(short, tools=TOOLS)


@pytest.mark.row("F-183", "F-185")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("baichuan2", "Be brief.<reserved_106>Hi<reserved_107>Hello<reserved_106>Bye<reserved_107>"),
        ("llava", "<|im_start|>Be brief.\nUSER: Hi\nASSISTANT: Hello<|im_end|>\nUSER: Bye\nASSISTANT:"),
        ("falcon_180b", "System: Be brief.\nUser: Hi\nFalcon: Hello\nUser: Bye\nFalcon:"),
        ("falcon", "Be brief.\nUser: Hi\nAssistant: Hello\nUser: Bye\nAssistant:"),
    ],
)
def test_turns_of_models_that_have_no_template(name, expected, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}')
    (tmp_path / "tokenizer.json").write_bytes((DEMO / "tokenizer.json").read_bytes())
    said = ("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Bye")
    messages = [{"role": role, "content": content} for role, content in said]
    assert Tokenizer.load(tmp_path, chat_template=name).render_chat(messages) == expected


@pytest.mark.row("F-973")
def test_mistral_is_asked_for_several_calls():
    text = Tokenizer.load(DEMO, chat_template="mistral_parallel").render_chat(CONVERSATION, tools=TOOLS)
    assert "several at once" in text
    assert "several" not in Tokenizer.load(DEMO, chat_template="mistral").render_chat(CONVERSATION, tools=TOOLS)


@pytest.mark.row("F-176")
def test_a_template_of_the_tokenizer_by_name(tmp_path):
    for file in ("tokenizer.json",):
        (tmp_path / file).write_bytes((DEMO / file).read_bytes())
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools | length }} tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    messages = [{"role": "user", "content": "Hi"}]
    assert Tokenizer.load(tmp_path, chat_template="tool_use").render_chat(messages, tools=TOOLS) == "2 tools"
    own = Tokenizer.load(tmp_path)
    assert own.render_chat(messages, template="tool_use", tools=TOOLS) == "2 tools"
    assert own.render_chat(messages) == "plain"
    own.check_template("tool_use")
    for wrong in ("nowhere", "tool-use"):
        with pytest.raises(ConfigError, match="lsv itself has baichuan2, chatml, falcon"):
            own.check_template(read_template(wrong))
        with pytest.raises(ConfigError, match="lsv itself has"):
            Tokenizer.load(tmp_path, chat_template=wrong)


@pytest.mark.row("F-178", "F-180", "F-183")
@pytest.mark.parametrize(
    ("given", "own"),
    [
        ("examples/template_chatml.jinja", "chatml"), ("./examples/template_chatml.jinja", "chatml"),
        ("template_llava.jinja", "llava"), ("/vllm-workspace/examples/template_falcon_180b.jinja", "falcon_180b"),
        ("examples/template_falcon.jinja", "falcon"), ("examples/template_baichuan.jinja", "baichuan2"),
        ("examples/tool_chat_template_hermes.jinja", "hermes"),
        ("examples/tool_chat_template_mistral.jinja", "mistral"),
        ("examples/tool_chat_template_mistral_parallel.jinja", "mistral_parallel"),
        ("examples/tool_chat_template_mistral3.jinja", "mistral_v7"),
        ("examples/tool_chat_template_llama3.1_json.jinja", "llama3_json"),
        ("examples/tool_chat_template_llama3.2_json.jinja", "llama3_json"),
    ],
)  # fmt: skip
def test_a_template_file_of_vllm_s_examples_means_one_of_lsv(given, own, caplog):
    assert read_template(given) == (TEMPLATES / f"{own}.jinja").read_text()
    assert f"chat template {given}: there is no such file; lsv's own template {own} is used instead" in caplog.text


def test_a_template_file_that_is_there_is_read(tmp_path, caplog):
    file = tmp_path / "template_chatml.jinja"
    file.write_text("mine")
    assert read_template(str(file)) == "mine"
    assert not caplog.records


def test_an_example_without_a_template_of_lsv_is_refused_with_the_list():
    with pytest.raises(ConfigError, match=r"lsv itself has baichuan2, chatml.* tool_chat_template_hermes\.jinja, "):
        read_template("examples/tool_chat_template_deepseekv3.jinja")
    with pytest.raises(ConfigError, match=r"lsv itself has [\w, ]+$"):
        read_template("examples/mine.jinja")


def test_transformers_name_of_rendering_is_known(tmp_path: Path):
    reference = transformers.PreTrainedTokenizerFast(tokenizer_file=str(DEMO / "tokenizer.json"))
    tokenizer = Tokenizer.load(DEMO, chat_template="chatml")
    conversation, template = [{"role": "user", "content": "Hi"}], read_template("chatml")
    expected = reference.apply_chat_template(conversation, chat_template=template, return_dict=False)
    assert tokenizer.apply_chat_template(conversation) == expected
    text = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    assert text == tokenizer.render_chat(conversation)
    shown = tokenizer.apply_chat_template(conversation, chat_template="{{ tone }}", tokenize=False, tone="dry")
    assert shown == "dry"
    assert tokenizer.eos_token_id in tokenizer.eos_ids
    with pytest.raises(BadRequest, match="leave return_tensors out"):
        tokenizer.apply_chat_template(conversation, return_tensors="pt")
