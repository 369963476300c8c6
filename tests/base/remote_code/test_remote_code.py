"""Code of tokenizers and configs that checkpoints bring: run where it is trusted, confined, never in this process."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import lsv
from lsv.plugins import load
from lsv.resolve import resolve
from lsv.settings import Declared, gather, options
from lsv.settings.flags import parse
from lsv.text.detokenize import Detokenizer
from lsv.text.tokenizer import Tokenizer
from lsv_base.errors import BadRequest, CheckpointError, ConfigError, LsvError
from lsv_base.remote_code import process
from lsv_base.remote_code.messages import MakeConfig
from lsv_base.remote_code.process import CodeProcess
from lsv_base.remote_code.references import check_code, find_code
from lsv_testing.tiny import tiny
from suite.waiting import wait_until

TOKENIZER = '''
import os, time
from transformers import PreTrainedTokenizer
from .tables import OFFSET

def forbidden(act):
    try:
        act()
    except OSError:
        return
    os._exit(9)

class Bytes(PreTrainedTokenizer):
    """Every byte is a token; there are two more in front."""

    vocab_files_names = {"vocab_file": "bytes.vocab"}
    model_input_names = ["input_ids"]

    def __init__(self, vocab_file=None, **settings):
        self.words = open(vocab_file).read().split()
        if settings.pop("strict", False):
            forbidden(lambda: open(os.path.expanduser("~/.ssh/config-that-is-not-there"), "w"))
        super().__init__(**settings)

    @property
    def vocab_size(self):
        return 256 + OFFSET

    def get_vocab(self):
        return {self._convert_id_to_token(one): one for one in range(self.vocab_size)} | self.added_tokens_encoder

    def _tokenize(self, text):
        if "hang" in text:
            time.sleep(60)
        if "raise" in text:
            raise KeyError("no such thing")
        return [f"b{byte}" for byte in text.encode()]

    def _convert_token_to_id(self, token):
        return int(token[1:]) + OFFSET

    def _convert_id_to_token(self, one):
        return f"b{one - OFFSET}" if one >= OFFSET else self.words[one]

    def convert_tokens_to_string(self, tokens):
        return bytes(int(token[1:]) for token in tokens if token[0] == "b").decode(errors="replace")
'''
FAST = """
from transformers import PreTrainedTokenizerFast
from tokenizers import Tokenizer, models, pre_tokenizers

class Words(PreTrainedTokenizerFast):
    def __init__(self, **settings):
        backend = Tokenizer(models.WordLevel({"hello": 0, "world": 1, "?": 2}, unk_token="?"))
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        super().__init__(tokenizer_object=backend, **{"eos_token": "world", **settings})
"""
CONFIG = """
from transformers import PretrainedConfig, ProcessorMixin

class Beside(ProcessorMixin):
    pass

class Renamed(PretrainedConfig):
    model_type = "renamed"
    attribute_map = {"hidden_size": "width", "num_hidden_layers": "depth"}

    def __init__(self, width=64, depth=2, rope_ratio=1.0, **keys):
        self.width, self.depth = width, depth
        self.rope_theta = 10000.0 * rope_ratio
        if depth < 0:
            raise ValueError("no layers below zero")
        super().__init__(**keys)
"""


def write_tokenizer(folder: Path, reference: str = "tokenizing.code.Bytes", **settings: Any) -> Path:
    (folder / "tokenizing").mkdir(parents=True, exist_ok=True)
    (folder / "tokenizing" / "code.py").write_text(TOKENIZER)
    (folder / "tokenizing" / "tables.py").write_text("OFFSET = 2\n")
    (folder / "fast.py").write_text(FAST)
    (folder / "bytes.vocab").write_text("one\ntwo\n")
    auto_map = {"AutoTokenizer": [reference, None]}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": auto_map, "eos_token": "<eos>", "strict": True, **settings})
    )
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write_tokenizer(tmp_path_factory.mktemp("bytes")), remote_code="auto")


@pytest.mark.row("F-232")
def test_a_tokenizer_of_its_own_code_runs_beside_this_process(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("héllo", add_special_tokens=False)
    assert ids == [byte + 2 for byte in "héllo".encode()]
    assert tokenizer.decode(ids) == "héllo"
    assert tokenizer.decode([*ids, *tokenizer.eos_ids]) == "héllo"
    assert (tokenizer.vocab_size, tokenizer.eos_ids) == (259, (258,))
    assert tokenizer.token_text(258) == "<eos>"
    assert tokenizer.token_bytes(ord("a") + 2) == b"a"
    assert tokenizer.special_ids == {258}
    assert not [name for name in sys.modules if name.startswith("lsv_checkpoint_code")], "it is not imported here"
    with pytest.raises(BadRequest):
        tokenizer.decode([-1])


def test_its_answers_are_streamed(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("añb ✓", add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer, [])
    assert "".join(detokenizer.push(one) for one in ids) + detokenizer.flush() == "añb ✓"


def test_what_its_code_raises_or_never_ends_fails_one_text(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadRequest, match=r"own code tokenizing\.code.Bytes failed: KeyError"):
        tokenizer.encode("raise")
    monkeypatch.setattr(process, "SECONDS", 0.3)
    with pytest.raises(BadRequest, match=r"was stopped: it took more than 0\.3 s"):
        tokenizer.encode("hang")
    monkeypatch.undo()
    assert tokenizer.encode("a", add_special_tokens=False) == [99], "another process took its place"


@pytest.mark.row("F-232")
def test_without_the_flag_it_is_said_what_to_do(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    with pytest.raises(CheckpointError, match=r"code of its own, tokenizing\.code\.Bytes: --trust-remote-code runs it"):
        Tokenizer.load(tmp_path)


@pytest.mark.cold
def test_code_that_has_a_fast_form_is_needed_once(tmp_path: Path) -> None:
    found = Tokenizer.load(write_tokenizer(tmp_path, "fast.Words"), remote_code="auto")
    assert found.encode("hello world") == [0, 1]
    assert type(found._backend).__module__.startswith("tokenizers")


@pytest.mark.row("F-232")
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import a_package_that_is_not_there", "No module named 'a_package_that_is_not_there'"),
        ("class Words:\n    def from_pretrained(*given, **keys):\n        raise OSError('old')", "OSError: old"),
        ("import os\nos._exit(9)", "was stopped"),
    ],
)
def test_files_are_read_without_code_that_fails(
    code: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_tokenizer(tmp_path, "broken.Words", tokenizer_class="BertTokenizer", strict=False)
    (tmp_path / "broken.py").write_text(code)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(LsvError, match=reason):
        Tokenizer.load(tmp_path, remote_code="auto")
    (tmp_path / "vocab.txt").write_text("\n".join(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world")))
    found = Tokenizer.load(tmp_path, remote_code="auto")
    assert found.encode("hello world") == Tokenizer.load(tmp_path).encode("hello world") == [2, 5, 6, 3]
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told.startswith(f"{tmp_path}: lsv reads the files of the tokenizer without its code broken.Words: ")
    assert reason in told


@pytest.mark.parametrize(
    ("auto_map", "names", "expected"),
    [
        ({"AutoTokenizer": ["slow.A", "fast.B"]}, ("AutoTokenizer",), "fast.B"),
        ({"AutoTokenizer": ["slow.A", None]}, ("AutoTokenizer",), "slow.A"),
        (["slow.A", None], ("AutoTokenizer",), "slow.A"),
        ({"AutoModel": "m.M"}, ("AutoModelForCausalLM", "AutoModel"), "m.M"),
        ({"AutoConfig": 7}, ("AutoConfig",), None),
        ("nonsense", ("AutoConfig",), None),
    ],
)
def test_auto_map(auto_map: object, names: tuple[str, ...], expected: str | None) -> None:
    assert find_code({"auto_map": auto_map}, *names) == expected


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("org/other--code.A", "in another repository, org/other"),
        ("../up.A", "not of the form module.Class"),
        ("code", "not of the form module.Class"),
        ("absent.A", "there is no .*absent.py"),
    ],
)
def test_code_that_is_not_there_is_refused(tmp_path: Path, reference: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        check_code(reference, tmp_path)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama in the words of a config class of its own, which the folder brings, and a tokenizer that is code."""
    path = tiny("llama", tmp_path_factory.mktemp("renamed"))
    known = json.loads((path / "config.json").read_text())
    known |= {"width": known.pop("hidden_size"), "depth": known.pop("num_hidden_layers"), "rope_ratio": 2.0}
    known.pop("rope_parameters", None)
    known |= {"model_type": "renamed", "auto_map": {"AutoConfig": "c.Renamed", "AutoModelForCausalLM": "m.Model"}}
    (path / "config.json").write_text(json.dumps(known))
    (path / "c.py").write_text(CONFIG)
    (path / "m.py").write_text("raise SystemExit('a model is never run')")
    return write_tokenizer(path)


@pytest.mark.row("F-232")
def test_config_and_tokenizer_run_with_the_flag_and_the_model_never(checkpoint: Path) -> None:
    with lsv.LLM(str(checkpoint), trust_remote_code=True, max_model_len=64) as llm:
        config = llm.llm_engine.client.config
        assert config.remote_code == "auto"
        made = {name: config.overrides[name] for name in ("hidden_size", "num_hidden_layers", "rope_theta")}
        assert made == {"hidden_size": 64, "num_hidden_layers": 2, "rope_theta": 20000.0}
        reasons = {reason.name: reason for reason in config.reasons}
        assert reasons["config"].value == "c.Renamed"
        assert reasons["architecture"].why == "a model's own code (m.Model) is never run: the native llama runs it"
        (output,) = llm.generate("ab", lsv.SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)
        assert list(output.prompt_token_ids) == [99, 100]
        assert len(output.outputs[0].token_ids) == 3


@pytest.mark.row("F-229")
def test_the_config_s_code_may_be_of_another_revision(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is fetched alone, and what it reads is still the model's own."""
    asked: list[tuple[str, str | None, tuple[str, ...]]] = []
    (tmp_path / "c.py").write_text(CONFIG.replace("10000.0", "500.0"))

    def download(name: str, *, allow_patterns: list[str], revision: str | None = None, **_: object) -> str:
        asked.append((name, revision, tuple(allow_patterns)))
        return str(tmp_path if revision == "v2" else checkpoint)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with lsv.LLM("org/renamed", trust_remote_code=True, code_revision="v2", max_model_len=64) as llm:
        config = llm.llm_engine.client.config
        assert config.overrides["rope_theta"] == 1000.0
        reasons = {reason.name: reason.why for reason in config.reasons}
        assert reasons["config"] == "its code of revision v2, run in a confined process (--trust-remote-code)"
        (output,) = llm.generate("ab", lsv.SamplingParams(max_tokens=1), use_tqdm=False)
        assert list(output.prompt_token_ids) == [99, 100]
    assert ("org/renamed", "v2", ("*.py", "*.tiktoken")) in asked
    assert [revision for _, revision, patterns in asked if "*.json" in patterns] == [None]


def test_a_folder_has_one_revision_of_its_code(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match=r"code_revision v2: .* is a folder, which has one revision"):
        lsv.LLM(str(checkpoint), trust_remote_code=True, code_revision="v2")


def test_a_config_that_fails_says_so(checkpoint: Path) -> None:
    code = CodeProcess(str(checkpoint), "c.Renamed", "auto")
    with pytest.raises(LsvError, match=r"c\.Renamed failed: ValueError: no layers below zero"):
        code.ask(MakeConfig(b'{"depth": -1}'))
    code.close()


@pytest.mark.row("F-232")
@pytest.mark.parametrize(("named", "starts"), [("LlamaForCausalLM", True), ("RenamedForCausalLM", False)])
def test_a_native_model_is_read_without_a_config_s_code_that_fails(
    named: str, starts: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tiny("llama", tmp_path)
    known = json.loads((path / "config.json").read_text())
    known |= {"architectures": [named], "model_type": "renamed", "auto_map": {"AutoConfig": "c.Renamed"}}
    (path / "config.json").write_text(json.dumps(known))
    (path / "c.py").write_text("from transformers import NoSuchName")
    plugins = load(["core", "cpu", "models"])
    declared = Declared(options.for_scope("engine", plugins.settings()))
    settings = gather(declared, parse(["--model", str(path), "--trust-remote-code"], declared).given)
    if not starts:
        with pytest.raises(CheckpointError, match=r"c\.Renamed failed: ImportError: .*NoSuchName"):
            resolve(settings, plugins)
        return
    config = resolve(settings, plugins)
    assert (config.model_offer, config.overrides) == ("llama", {})
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told.startswith(f"{path}: lsv reads config.json without its code c.Renamed: ")
    assert "NoSuchName" in told


def test_a_tokenizer_that_is_gone_leaves_no_process(tmp_path: Path) -> None:
    found = Tokenizer.load(write_tokenizer(tmp_path), remote_code="auto")
    child = found._backend._process._process._child
    assert child.running
    del found
    gc.collect()
    wait_until(lambda: not Path(f"/proc/{child.pid}").exists())  # not even as a zombie
