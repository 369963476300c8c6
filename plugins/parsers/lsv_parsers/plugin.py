"""Manifest: the forms of calls and of thinking, and how each is told by a chat template."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.offers import CallForm, ReasoningParserOffer, ToolParserOffer

api = 1

_CALL = ("<tool_call>", "</tool_call>")
_CALLS = ("<tool_calls>", "</tool_calls>")
_DEEPSEEK = (
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
)  # fmt: skip
_KIMI = (
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>",
    "<|tool_call_argument_begin|>",
)  # fmt: skip
_HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>")
_THINK = ("<think>", "</think>")


def _tools(
    name: str, marks: tuple[str, ...], templates: tuple[str, ...] = (), *, of: str = "", **more: object
) -> ToolParserOffer:
    return ToolParserOffer(name, f"lsv_parsers.tools.formats:{of or name}", marks, templates, **more)  # type: ignore[arg-type]


def _thinking(
    name: str, marks: tuple[str, ...], templates: tuple[str, ...] = (), *, of: str = "", **more: object
) -> ReasoningParserOffer:
    return ReasoningParserOffer(name, f"lsv_parsers.thinking:{of or name}", marks, templates, **more)  # type: ignore[arg-type]


@hookimpl
def lsv_tool_parsers() -> Iterable[ToolParserOffer]:
    yield _tools("hermes", _CALL, ("<tool_call>", "arguments"), aliases=("qwen",), form=CallForm(*_CALL))
    yield _tools(
        "mistral", ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"), ("[TOOL_CALLS]",), short_ids=True,
        form=CallForm("[TOOL_CALLS]", listed=True, head="{name}[ARGS]"),
    )  # fmt: skip
    yield _tools(
        "llama3_json", ("<|python_tag|>",), ("<|start_header_id|>", "parameters"), aliases=("llama4_json", "llama3")
    )
    yield _tools("llama4_pythonic", ("<|python_start|>", "<|python_end|>"), ("<|header_start|>", "<|python_start|>"))
    yield _tools("pythonic", ())
    yield _tools("qwen3_coder", _CALL, ("<tool_call>", "<function="), aliases=("qwen3_xml",))
    yield _tools("deepseek_v3", _DEEPSEEK, ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>", "```json"))
    yield _tools(
        "deepseek_v31", _DEEPSEEK, ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"),
        form=CallForm("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", head="{name}<｜tool▁sep｜>"),
    )  # fmt: skip
    yield _tools("glm45", _CALL, ("<tool_call>", "<arg_key>", "<arg_value>"), aliases=("glm47",))
    yield _tools(
        "granite", ("<|tool_call|>", *_CALL), ("<|start_of_role|>", "<|tool_call|>"),
        form=CallForm("<|tool_call|>", listed=True),
    )  # fmt: skip
    yield _tools(
        "internlm", ("<|action_start|>", "<|plugin|>", "<|action_end|>"), ("<|action_start|>", "<|plugin|>"),
        form=CallForm("<|action_start|><|plugin|>", "<|action_end|>", arguments="parameters"),
    )  # fmt: skip
    yield _tools(
        "jamba", _CALLS, ("<tool_calls>",), architectures=("JambaForCausalLM",), form=CallForm(*_CALLS, listed=True)
    )
    yield _tools(
        "hunyuan_a13b", _CALLS, ("<tool_calls>",),
        architectures=("HunYuanMoEV1ForCausalLM", "HunYuanDenseV1ForCausalLM"), form=CallForm(*_CALLS, listed=True),
    )  # fmt: skip
    yield _tools(
        "minimax", _CALLS, ("<tool_calls>",), architectures=("MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM")
    )
    yield _tools("minimax_m2", ("<minimax:tool_call>", "</minimax:tool_call>"), ("<minimax:tool_call>",))
    yield _tools("phi4_mini_json", (), ("<|tool|>",), architectures=("Phi3ForCausalLM",))
    yield _tools(
        "kimi_k2", _KIMI, ("<|tool_calls_section_begin|>",),
        form=CallForm(
            "<|tool_call_begin|>", "<|tool_call_end|>", head="functions.{name}:{index}<|tool_call_argument_begin|>"
        ),
    )  # fmt: skip
    yield _tools("seed_oss", ("<seed:tool_call>", "</seed:tool_call>"), ("<seed:tool_call>",))
    yield _tools("json", ())
    yield _tools("xlam", ("[TOOL_CALLS]", *_CALL))
    yield ToolParserOffer(
        "openai", "lsv_parsers.harmony:tools", _HARMONY, ("<|channel|>", "functions."), aliases=("gpt_oss",)
    )


@hookimpl
def lsv_reasoning_parsers() -> Iterable[ReasoningParserOffer]:
    yield _thinking("deepseek_r1", _THINK, ("<｜Assistant｜>", "</think>"), aliases=("deepseek_v3",))
    yield _thinking("qwen3", _THINK, _THINK, of="think")
    yield _thinking("glm45", _THINK, (*_THINK, "[gMASK]"), of="think")
    yield _thinking("granite", (), ("Here is my thought process:",))
    yield _thinking("granite_response", _THINK, ("<think>", "<response>"))
    yield _thinking("hunyuan_a13b", _THINK, ("</think>", "<answer>"))
    yield _thinking("mistral", ("[THINK]", "[/THINK]"), ("[THINK]",))
    yield _thinking("seed_oss", ("<seed:think>", "</seed:think>"), ("<seed:think>",))
    yield _thinking("minimax", _THINK, (*_THINK, "]~b]"), of="deepseek_r1", aliases=("minimax_m2",))
    yield _thinking(
        "step3", _THINK, ("</think>",), of="deepseek_r1", architectures=("Step3VLForConditionalGeneration",)
    )
    yield ReasoningParserOffer(
        "openai_gptoss", "lsv_parsers.harmony:thinking", _HARMONY, ("<|channel|>", "analysis"), aliases=("gpt_oss",)
    )
