"""Tokenizers and chat templates read without transformers, equal to what transformers makes of the same files."""

from __future__ import annotations

import json
import logging
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import tokenizers

import lsv_demo
from lsv.text.tokenizer import NoTokenizer, Tokenizer, open_tokenizer
from lsv_base.errors import BadRequest, CheckpointError, ConfigError
from lsv_testing.fakes.client import fake_config
from lsv_testing.fakes.text import letters

DEMO = Path(lsv_demo.__file__).parent / "checkpoint"

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set sys = messages[0]['content'] %}"
    "{% else %}{% set rest = messages %}{% set sys = false %}{% endif %}"
    "{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{% if loop.index0 == 0 and sys %}{% set content = '<<SYS>>\\n' + sys + '\\n<</SYS>>\\n\\n' + m['content'] %}"
    "{% else %}{% set content = m['content'] %}{% endif %}"
    "{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
TOOLS = """{%- if tools %}
    {{- '<tools>' }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=2) }}
        {%- if loop.last %}{% break %}{% endif %}
    {%- endfor %}
    {{- '</tools>\\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.tool_calls %}
        {%- for call in message.tool_calls %}{{ call.function | tojson }}{%- endfor %}
    {%- else %}
        {%- if message.content is string %}{{- message.role + ': ' + message.content|trim }}
        {%- else %}{%- for part in message['content'] %}{{- part['text'] }}{%- endfor %}{%- endif %}
    {%- endif %}
    {{- '*' if loop.index0 == ns.last }}
    {%- generation %}{{ message.reasoning_content }}{%- endgeneration %}
{% endfor %}
{%- for d in documents or [] %}{{ d.title }}{% endfor %}
{{- 'think' if enable_thinking is defined and enable_thinking }}"""

TEMPLATES = {"chatml": CHATML, "llama2": LLAMA2, "tools": TOOLS}
USER = {"role": "user", "content": "  Grüße <b>&amp;</b> 你好 🙂 "}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [USER],
    "system": [{"role": "system", "content": "Be brief."}, USER],
    "long": [USER, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "Bye\n\n"}],
}
TOOL = {"type": "function", "function": {"name": "f", "description": "ä<>'\"", "parameters": {"type": "object"}}}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"text": "ä<>'\""}}}


@pytest.fixture(scope="module")
def reference() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(DEMO)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(DEMO)


def copy(folder: Path, **changes: Any) -> Path:
    """The demo's tokenizer files, with changes to tokenizer_config.json."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(DEMO / name, folder / name)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, **changes}))
    return folder


@pytest.mark.parametrize("text", ["", "Hello, world!", "  two  spaces\n\ttab", "naïve 你好 🙂", "<|im_start|>", "a\0b"])
def test_ids_equal_transformers(tokenizer: Tokenizer, reference: Any, text: str):
    ids = tokenizer.encode(text)
    assert ids == reference.encode(text)
    assert tokenizer.encode(text, add_special_tokens=False) == reference.encode(text, add_special_tokens=False)
    for skip in (True, False):
        assert tokenizer.decode(ids, skip) == reference.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("prompt", [True, False])
def test_templates_equal_transformers(reference: Any, name: str, conversation: str, prompt: bool, tmp_path: Path):
    template, messages = TEMPLATES[name], CONVERSATIONS[conversation]
    folder = copy(tmp_path / "t", chat_template=template, bos_token="<|endoftext|>")
    own = Tokenizer.load(folder).render_chat(messages, add_generation_prompt=prompt)
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    assert own == theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)


def test_everything_a_template_can_be_given(reference: Any):
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "hm"},
    ]
    given = {"tools": [TOOL], "documents": [{"title": "T", "text": "x"}]}
    own = letters(50).render_chat(
        messages, add_generation_prompt=False, template=TOOLS, kwargs={"enable_thinking": True}, **given
    )
    theirs = reference.apply_chat_template(messages, tokenize=False, chat_template=TOOLS, enable_thinking=True, **given)
    assert own == theirs
    assert "ä<>'" in own


def test_the_demo_template(tokenizer: Tokenizer, reference: Any):
    for messages in CONVERSATIONS.values():
        assert tokenizer.has_chat_template
        theirs = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert tokenizer.render_chat(messages, add_generation_prompt=True) == theirs


def test_parts_become_text_where_the_template_wants_text():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    message = {"role": "user", "content": parts}
    assert "one\ntwo" in letters(50).render_chat([message], template=CHATML)
    shown = {"role": "user", "content": [{"type": "image", "mark": "<image>"}, *parts]}
    assert "<image>\none\ntwo" in letters(50).render_chat([shown], template=CHATML)
    with pytest.raises(BadRequest, match="takes text parts only"):
        letters(50).render_chat([{"role": "user", "content": [{"type": "image"}]}], template=CHATML)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (["I", "<image>what?"], "<image>what?"),
        (["<image>what?", "I"], "<image>what?"),
        (["I", "I", "one <image>, one <image>"], "one <image>, one <image>"),
        (["I", "I", "<image>what?"], "<image>\n<image>what?"),
        (["<image>what?", "I", "I"], "<image>what?\n<image>"),
        (["I", "<image><image>"], "<image><image>"),
        (["A", "I", "<image>what?"], "<audio>\n<image>what?"),
    ],
)
def test_marks_that_a_text_has_are_not_written_again(parts: list[str], expected: str):
    media = {"I": {"type": "image", "mark": "<image>"}, "A": {"type": "audio", "mark": "<audio>"}}
    content = [media.get(part, {"type": "text", "text": part}) for part in parts]
    rendered = letters(50).render_chat([{"role": "user", "content": content}], template="{{ messages[0].content }}")
    assert rendered == expected


def test_templates_that_refuse_or_fail():
    tokenizer = letters(50)
    with pytest.raises(BadRequest, match="no chat template"):
        tokenizer.render_chat([USER])
    with pytest.raises(BadRequest, match="must alternate"):
        tokenizer.render_chat([{"role": "assistant", "content": "x"}], template=LLAMA2)
    for broken in ("{% if %}", "{{ messages[0].content / 2 }}", "{{ ''.__class__.__mro__ }}", "{{ nothing() }}"):
        with pytest.raises(BadRequest):
            tokenizer.render_chat([USER], template=broken)
    with pytest.raises(BadRequest, match="empty"):
        tokenizer.render_chat([], template=CHATML)


def test_templates_by_name(tmp_path: Path):
    listed = [{"name": name, "template": text} for name, text in (("default", "D"), ("tool_use", "T"), ("x", "X"))]
    tokenizer = Tokenizer.load(copy(tmp_path / "a", chat_template=listed))
    assert tokenizer.render_chat([USER]) == "D"
    assert tokenizer.render_chat([USER], tools=[TOOL]) == "T"
    assert tokenizer.render_chat([USER], template="x") == "X"
    folder = copy(tmp_path / "b", chat_template="config")
    (folder / "chat_template.jinja").write_text("file")
    assert Tokenizer.load(folder).render_chat([USER]) == "file"
    assert Tokenizer.load(folder, chat_template="{{ 'given' }}").render_chat([USER]) == "given"
    assert Tokenizer.load(folder, chat_template=str(folder / "chat_template.jinja")).render_chat([USER]) == "file"
    with pytest.raises(ConfigError, match="neither a template nor a file"):
        Tokenizer.load(folder, chat_template="nowhere.jinja")


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("eos", [True, False])
def test_borders_equal_transformers(tmp_path: Path, bos: bool, eos: bool):
    from transformers import AutoTokenizer

    folder = copy(tmp_path / "t", bos_token="<|endoftext|>", add_bos_token=bos, add_eos_token=eos)
    own, theirs = Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    assert own.encode("Hi there") == theirs.encode("Hi there")
    assert own.encode("Hi", add_special_tokens=False) == theirs.encode("Hi", add_special_tokens=False)


def test_ids_that_matter(tokenizer: Tokenizer):
    assert tokenizer.vocab_size == 1024
    assert tokenizer.eos_ids == (2, 0)
    assert tokenizer.bos_id is None
    assert tokenizer.special_ids == {0, 1, 2, 1021, 1022, 1023}
    assert tokenizer.token_text(1) == "<|im_start|>"
    assert tokenizer.token_text(10**6) == ""


def test_encoding_releases_the_lock(tokenizer: Tokenizer):
    text = "lorem ipsum dolor sit amet " * 20_000
    began, ended = threading.Event(), threading.Event()
    found: list[int] = []

    def encode() -> None:
        began.set()
        found.extend(tokenizer.encode(text))
        ended.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)  # so that this thread goes on only when the other one lets it
    try:
        thread = threading.Thread(target=encode)
        thread.start()
        began.wait()
        assert not ended.is_set(), "the other thread was done before this one could go on"
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert found == tokenizer._backend.encode(text).ids


def test_a_batch_of_one_has_the_ids_of_its_text(tokenizer: Tokenizer):
    chance = random.Random(0)
    pieces = [*"abc ABC\n\t é你🙂\0'\"01", "<|im_start|>", "<|im_end|>", " the", "http://"]
    for _ in range(500):
        text = "".join(chance.choices(pieces, k=chance.randint(0, 60)))
        for special in (True, False):
            assert tokenizer.encode(text, special) == tokenizer._backend.encode(text, add_special_tokens=special).ids


def test_text_that_is_no_unicode(tokenizer: Tokenizer):
    with pytest.raises(BadRequest, match="not valid Unicode"):
        tokenizer.encode("a\ud800b")


@pytest.mark.parametrize("id", [-1, 10**12])
def test_numbers_that_are_no_ids(tokenizer: Tokenizer, id: int):
    with pytest.raises(BadRequest, match="from 0 to 1023"):
        tokenizer.decode([id])


def test_truncation_and_padding_of_the_file_do_not_count(tmp_path: Path):
    folder = copy(tmp_path / "t")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert len(Tokenizer.load(folder).encode("word " * 50)) > 40


def test_sampling_defaults(tmp_path: Path):
    folder = copy(tmp_path / "t")
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "top_k": 20, "eos_token_id": 7}))
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.sampling_defaults == {"temperature": 0.6, "top_k": 20}
    assert 7 in tokenizer.eos_ids
    assert Tokenizer.load(folder, generation="").sampling_defaults == {}
    other = tmp_path / "other"
    other.mkdir()
    (other / "generation_config.json").write_text('{"top_p": 0.5, "eos_token_id": 1}')
    elsewhere = Tokenizer.load(folder, generation=str(other), sampling={"min_p": 0.1})
    assert elsewhere.sampling_defaults == {"top_p": 0.5, "min_p": 0.1}
    assert 7 in elsewhere.eos_ids, "what ends an answer is the model's"


def test_an_architecture_may_name_further_stop_tokens(tmp_path: Path):
    folder = copy(tmp_path / "t")
    own, there = Tokenizer.load(folder), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    token = next(token for token in range(3, 99) if token not in own.eos_ids)
    named = Tokenizer.load(folder, stop_tokens=("<none>", there.id_to_token(token)))
    assert named.eos_ids == (*own.eos_ids, token)


@pytest.mark.row("F-184", "F-222")
def test_the_form_of_contents_can_be_said():
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    text = [{"role": "user", "content": "a"}]
    shows = "{{ messages[0]['content'] }}"
    tokenizer = letters(50)
    assert tokenizer.render_chat(parts, template=shows, content_format="string") == "a\nb"
    assert "'text': 'a'" in tokenizer.render_chat(parts, template=shows, content_format="openai")
    assert "'text': 'a'" in tokenizer.render_chat(text, template=shows, content_format="openai")
    assert tokenizer.render_chat(text, template=shows) == "a"


def test_folders_without_a_usable_tokenizer(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="can't be read"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        Tokenizer.load(tmp_path)


def test_a_slow_tokenizer_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "slow"
    folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##s"]
    (folder / "vocab.txt").write_text("\n".join(words))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    assert Tokenizer.load(folder).encode("hello worlds", add_special_tokens=False) == [5, 6, 7]
    monkeypatch.setattr(subprocess, "run", None)
    assert Tokenizer.load(folder).encode("hello", add_special_tokens=False) == [5]


def test_a_vocabulary_with_merges_is_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "slow"
    folder.mkdir()
    words = ["h", "e", "l", "o", "Ġ", "he", "hel", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\nh e\nhe l\n")
    settings = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.encode("hello") == [6, 2, 3]
    assert (tokenizer.decode([6, 2, 3]), tokenizer.eos_ids) == ("hello", (7,))


def test_a_slow_tokenizer_that_cannot_be_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "slow"
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(b"no model")
    with pytest.raises(CheckpointError, match="could not be converted"):
        Tokenizer.load(folder)


def test_no_tokenizer_knows_where_answers_end(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"eos_token_id": [3, 4]}')
    tokenizer = NoTokenizer(tmp_path)
    assert tokenizer.eos_ids == (3, 4)
    with pytest.raises(BadRequest, match="give prompts as token ids"):
        tokenizer.encode("x")


def test_loading_imports_no_transformers():
    code = (
        "import sys; from lsv.text.tokenizer import Tokenizer; Tokenizer.load(sys.argv[1]);"
        "print(sorted({'torch', 'transformers'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(DEMO)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (49_152, "is from another model"),  # GGUF of SmolLM2 beside a tokenizer of the demo
        (1_330, "is from another model"),
        (1_000, "is from another model"),
        (1_280, "padding or reserved"),
        (1_020, "prompts with higher ids are refused"),
        (1_024, ""),
        (None, ""),
    ],
)
def test_a_tokenizer_of_another_model_is_refused(
    rows: int | None, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    vocabulary = {str(number): number for number in range(1024)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary)).save(str(tmp_path / "tokenizer.json"))
    caplog.set_level(logging.INFO)
    config = fake_config(tokenizer=str(tmp_path), vocab_size=rows)
    if "another" in said:
        with pytest.raises(ConfigError, match=f"has 1024 tokens, and the model has {rows}: it {said}"):
            open_tokenizer(config, skip=False)
    else:
        assert open_tokenizer(config, skip=False).vocab_size == 1024
        assert said in caplog.text
        assert bool(caplog.text) == bool(said)
    assert open_tokenizer(config, skip=True).vocab_size == 0


@pytest.mark.parametrize(
    ("rows", "tokens"),
    [
        (102_400, 100_015), (51_200, 50_295), (129_280, 128_815), (152_064, 151_665), (262_144, 262_145),
        (30_522, 30_522), (50_432, 50_277), (202_048, 201_135),
    ],
    ids=["DeepSeek", "Phi-2", "DeepSeek-V3", "Qwen2.5", "Gemma 3", "BERT", "GPT-NeoX", "Llama 4"],
)  # fmt: skip
def test_published_models_keep_their_tokenizers(rows: int, tokens: int, tmp_path: Path):
    vocabulary = {str(number): number for number in range(tokens)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary)).save(str(tmp_path / "tokenizer.json"))
    assert open_tokenizer(fake_config(tokenizer=str(tmp_path), vocab_size=rows), skip=False).vocab_size == tokens
