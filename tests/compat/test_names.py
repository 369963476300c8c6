"""The names of vLLM that programs import, and what they hear of those that are not there."""

from __future__ import annotations

import importlib
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import lsv
from lsv.settings import environment_with
from lsv_testing.tiny import tiny

from .conftest import ROOT, SOURCES

MANUAL = """
from vllm import LLM, SamplingParams, LLMEngine, AsyncLLMEngine, EngineArgs, AsyncEngineArgs, RequestOutput
from vllm import CompletionOutput, PoolingParams, TextPrompt, TokensPrompt, __version__
from vllm.lora.request import LoRARequest
from vllm.inputs import ExplicitEncoderDecoderPrompt, TextPrompt, TokensPrompt, zip_enc_dec_prompts
from vllm.utils import FlexibleArgumentParser, random_uuid
from vllm.outputs import RequestOutput, CompletionOutput, EmbeddingRequestOutput
from vllm.sampling_params import SamplingParams, GuidedDecodingParams, StructuredOutputsParams, BeamSearchParams
from vllm.entrypoints.llm import LLM
from vllm.engine.arg_utils import EngineArgs, AsyncEngineArgs
from vllm.engine.async_llm_engine import AsyncLLMEngine
from vllm.assets.image import ImageAsset
from vllm.assets.audio import AudioAsset
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor, BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.interface import BatchUpdate, LogitsProcessor, MoveDirectionality
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
"""
"""Imports of the manual's examples."""


@pytest.mark.row("F-928")
@pytest.mark.parametrize("line", MANUAL.split("\n")[1:-1])
def test_imports_of_the_manual(vllm: ModuleType, line: str) -> None:
    module, _, names = line.removeprefix("from ").partition(" import ")
    found = importlib.import_module(module)
    assert all(hasattr(found, name.strip()) for name in names.split(","))


def test_every_name_stands_for_something(vllm: ModuleType) -> None:
    names = importlib.import_module("vllm._names").NAMES
    for module, own in names.items():
        found = importlib.import_module(module)
        assert {name for name in own if getattr(found, name) is None} == set()
        assert set(own) <= set(dir(found))


def test_classes_are_lsvs(vllm: ModuleType) -> None:
    for name in ("LLM", "LLMEngine", "SamplingParams", "EngineArgs", "RequestOutput"):
        assert getattr(vllm, name) is getattr(lsv, name)
    assert vllm.sampling_params.SamplingParams is lsv.SamplingParams


def test_names_of_processors_are_cores(vllm: ModuleType) -> None:
    own = importlib.import_module("vllm._names").NAMES
    from lsv_offline.vllm_names.processors import NAMES

    for module, names in NAMES.items():
        assert names.items() <= own[module].items()


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("from vllm import ModelRegistry", "vllm.ModelRegistry"),
        ("from vllm.config import CacheConfig", "vllm.config.CacheConfig"),
        ("import vllm.attention", "vllm.attention"),
        ("from vllm.entrypoints.openai.protocol import ChatCompletionRequest", "vllm.entrypoints.openai.protocol"),
    ],
)
def test_what_is_missing_is_told_by_name(vllm: ModuleType, line: str, missing: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(line)
    with pytest.raises(ImportError, match=re.escape(f"vllm is lsv's stand-in here and has no {missing}; docs/vllm.md")):
        runpy.run_path(str(program))


def test_an_attribute_that_is_missing_is_told_by_name(vllm: ModuleType) -> None:
    with pytest.raises(AttributeError, match=r"lsv's stand-in here and has no vllm\.ModelRegistry"):
        _ = vllm.ModelRegistry
    assert not hasattr(vllm, "ModelRegistry")
    assert (ROOT / "docs" / "vllm.md").is_file()


def test_the_version_is_a_release_of_vllms_and_lsvs(vllm: ModuleType) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\+lsv", vllm.__version__)
    assert vllm.__version__ == runpy.run_path(str(SOURCES / "vllm" / "version.py"))["__version__"]


def test_importing_costs_no_torch() -> None:
    program = "import sys, vllm, vllm.sampling_params, vllm.lora.request; assert 'torch' not in sys.modules"
    environment = environment_with({"PYTHONPATH": str(SOURCES)})
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=120)


@pytest.mark.row("F-189")
def test_the_module_of_the_server_and_the_command_run_lsv() -> None:
    environment = environment_with({"PYTHONPATH": str(SOURCES)})
    for module, arguments in (
        ("vllm.entrypoints.openai.api_server", ["--model", "lsv-demo", "--frobnicate", "1"]),
        ("vllm.entrypoints.cli.main", ["serve", "lsv-demo", "--frobnicate", "1"]),
    ):
        line = [sys.executable, "-m", module, *arguments]
        done = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=120, check=False)
        assert done.returncode == 2
        assert "unknown option --frobnicate" in done.stderr, done.stderr


def test_tokenizers_are_those_of_transformers(vllm: ModuleType, tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path, tokenizer=True)
    get_tokenizer = importlib.import_module("vllm.tokenizers").get_tokenizer
    resolve = importlib.import_module("vllm.renderers.hf").resolve_chat_template
    tokenizer = get_tokenizer(folder, tokenizer_mode="auto", trust_remote_code=False, revision=None)
    assert tokenizer("Hi").input_ids == [72, 105]
    assert resolve(tokenizer, None, None, model_config=None) == tokenizer.chat_template
    assert resolve(tokenizer, "mine", None) == "mine"
    tokenizer.chat_template = None
    assert resolve(tokenizer, None, None) is None
    with pytest.raises(NotImplementedError, match="tokenizer_mode=mistral: this function gives tokenizers of trans"):
        get_tokenizer(folder, tokenizer_mode="mistral")


def test_what_servers_of_trainers_would_need_is_refused(vllm: ModuleType) -> None:
    module = importlib.import_module("vllm.distributed.weight_transfer.nccl_engine")
    for call in (module.NCCLTrainerSendWeightsArgs, module.NCCLWeightTransferEngine.trainer_init):
        with pytest.raises(NotImplementedError, match="lsv's servers take no weights from a trainer"):
            call()
    with pytest.raises(NotImplementedError, match="shutdown_ray"):
        importlib.import_module("vllm.distributed").cleanup_dist_env_and_memory(shutdown_ray=True)


def test_addresses_and_ids(vllm: ModuleType) -> None:
    names = importlib.import_module("vllm.utils")
    assert re.fullmatch(r"[0-9a-f]{32}", names.random_uuid())
    assert 0 < names.get_open_port() < 1 << 16
    assert re.fullmatch(r"[0-9a-f.:]+", names.get_ip())
