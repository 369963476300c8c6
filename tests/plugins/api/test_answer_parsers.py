"""Which parser reads a model's answers, and why."""

from __future__ import annotations

import pytest

from lsv import plugins
from lsv.offers import ReasoningParserOffer, ToolParserOffer
from lsv.plugins.catalog import Catalog
from lsv.text.shipped_templates import read_template
from lsv_api.parsers.finding import choose_parser, find_parser
from lsv_base.errors import ConfigError

LLAMA = "LlamaForCausalLM"


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return plugins.load(["parsers"]).catalog


def choose(catalog: Catalog, template: str, architecture: str = LLAMA, named: str | None = None):
    tools, why = choose_parser(catalog, ToolParserOffer, named=named, template=template, architecture=architecture)
    return tools and tools.name, why


@pytest.mark.parametrize(
    ("template", "architecture", "expected"),
    [
        (read_template("hermes"), LLAMA, "hermes"),
        (read_template("mistral"), LLAMA, "mistral"),
        (read_template("mistral_parallel"), LLAMA, "mistral"),
        (read_template("llama3_json"), LLAMA, "llama3_json"),
        (read_template("chatml"), LLAMA, None),
        ("<tool_call>{'name': …, 'arguments'}", "Qwen3ForCausalLM", "hermes"),
        ("<tool_call>\n<function=f>\n<parameter=a> arguments", "Qwen3MoeForCausalLM", "qwen3_coder"),
        ("<tool_call>{f}<arg_key>a</arg_key><arg_value> arguments", "Glm4MoeForCausalLM", "glm45"),
        ("<｜tool▁calls▁begin｜>function<｜tool▁sep｜>f\n```json", "DeepseekV3ForCausalLM", "deepseek_v3"),
        ("<｜tool▁calls▁begin｜>f<｜tool▁sep｜>", "DeepseekV3ForCausalLM", "deepseek_v31"),
        ("<|start_of_role|>…<|tool_call|>", "GraniteForCausalLM", "granite"),
        ("<tool_calls>", "JambaForCausalLM", "jamba"),
        ("<tool_calls>", "HunYuanMoEV1ForCausalLM", "hunyuan_a13b"),
        ("<tool_calls>", LLAMA, None),
        ("<|tool|>…<|/tool|>", "Phi3ForCausalLM", "phi4_mini_json"),
        ("<|header_start|>…<|python_start|>", "Llama4ForConditionalGeneration", "llama4_pythonic"),
        ("<|tool_calls_section_begin|>", "DeepseekV3ForCausalLM", "kimi_k2"),
        ("<minimax:tool_call>", "MiniMaxM2ForCausalLM", "minimax_m2"),
        ("<seed:tool_call><function=f>", "SeedOssForCausalLM", "seed_oss"),
        ("<|channel|>commentary to=functions.f", "GptOssForCausalLM", "openai"),
        ("", LLAMA, None),
    ],
)
def test_the_chat_template_decides(catalog, template, architecture, expected):
    assert choose(catalog, template, architecture)[0] == expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("<think>…</think>", "qwen3"),
        ("<｜Assistant｜><think>…</think>", "deepseek_r1"),
        ("[gMASK]<think>…</think>", "glm45"),
        ("[THINK]…[/THINK]", "mistral"),
        ("<seed:think>", "seed_oss"),
        ("<think>…</think><answer>", "hunyuan_a13b"),
        ("Here is my thought process:", "granite"),
        ("<|channel|>analysis", "openai_gptoss"),
        ("]~b]<think>…</think>", "minimax"),
        ("plain", None),
    ],
)
def test_so_it_does_for_thoughts(catalog, template, expected):
    offer, _ = choose_parser(catalog, ReasoningParserOffer, named=None, template=template, architecture=LLAMA)
    assert (offer and offer.name) == expected


def test_the_reason_is_told(catalog):
    assert choose(catalog, "<tool_calls>", "JambaForCausalLM")[1] == (
        "the chat template has <tool_calls>, and the architecture is JambaForCausalLM"
    )
    assert choose(catalog, "")[1] == "no tool parser recognises the chat template"
    assert choose(catalog, read_template("hermes"), named="none") == (None, "turned off")
    assert choose(catalog, read_template("hermes"), named="pythonic") == ("pythonic", "set by an option")


def test_names_and_aliases(catalog):
    assert find_parser(catalog, ToolParserOffer, "qwen3_xml").name == "qwen3_coder"
    with pytest.raises(ConfigError, match="there is no tool parser 'hermse'"):
        find_parser(catalog, ToolParserOffer, "hermse")


def test_no_name_is_given_twice(catalog):
    for kind in (ToolParserOffer, ReasoningParserOffer):
        names = [name for offer in catalog.offers(kind) for name in (offer.name, *offer.aliases)]
        assert len(names) == len(set(names))
        assert all(callable(catalog.load(offer)) for offer in catalog.offers(kind))
