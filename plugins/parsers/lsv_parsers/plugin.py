"""Manifest: the forms of calls and of thinking, and how each is told by a chat template."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.offers import CallForm, ReasoningParserOffer, ToolParserOffer

api = 2

_CALL = ("<tool_call>", "</tool_call>")
_CALLS = ("<tool_calls>", "</tool_calls>")
_DEEPSEEK = (
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
)  # fmt: skip
_KIMI = (
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>",
    "<|tool_call_argument_begin|>",
)  # fmt: skip
_COHERE = tuple(
    f"<|{end}_{name}|>" for name in ("THINKING", "RESPONSE", "TEXT") for end in ("START", "END")
)  # fmt: skip
_HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>")
_INKLING = (
    "<|message_model|>", "<|content_text|>", "<|content_thinking|>", "<|content_invoke_tool_json|>",
    "<|content_invoke_tool_text|>", "<|content_tool_error|>", "<|end_message|>", "<|content_model_end_sampling|>",
)  # fmt: skip
_THINK = ("<think>", "</think>")
_SOLAR = (
    "<|tool_calls|>", "<|calls|>", "<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>",
    "<|tool_call:end|>",
)  # fmt: skip
_KIMI_K3 = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
_HY_V3 = tuple(
    f"<{slash}{name}:opensource>"
    for name in ("tool_calls", "tool_call", "tool_sep", "arg_key", "arg_value") for slash in ("", "/")
)  # fmt: skip
_K2_HORIZON = tuple(
    f"<{slash}ifm|{name}>"
    for name in ("tool_calls", "tool_call", "arg_key", "arg_type", "arg_value") for slash in ("", "/")
)  # fmt: skip


def _tools(
    name: str, marks: tuple[str, ...], templates: tuple[str, ...] = (), *, of: str = "", **more: object
) -> ToolParserOffer:
    return ToolParserOffer(name, f"lsv_parsers.tools.formats:{of or name}", marks, templates, **more)  # type: ignore[arg-type]


def _thinking(
    name: str, marks: tuple[str, ...], templates: tuple[str, ...] = (), *, of: str = "", **more: object
) -> ReasoningParserOffer:
    return ReasoningParserOffer(name, f"lsv_parsers.thinking:{of or name}", marks, templates, **more)  # type: ignore[arg-type]


def _tools_of_2026() -> Iterable[ToolParserOffer]:
    """Forms that no other family has."""
    for name, group in (("deepseek_v32", "function_calls"), ("deepseek_v4", "tool_calls")):
        begin, end = f"<｜DSML｜{group}>", f"</｜DSML｜{group}>"
        yield _tools(name, (begin, end), ("｜DSML｜", group))
    yield _tools("gemma4", ("<|tool_call>", "<tool_call|>", '<|"|>'), ("<|tool_call>call:",))
    yield _tools(
        "functiongemma", ("<start_function_call>", "<end_function_call>", "<escape>"), ("<start_function_call>",)
    )
    yield _tools(
        "cohere_command4", ("<|START_ACTION|>", "<|END_ACTION|>"), ("<|START_ACTION|>",), of="cohere_command",
        aliases=("cohere_command3",),
    )  # fmt: skip
    yield _tools("lfm2", ("<|tool_call_start|>", "<|tool_call_end|>"), ("<|tool_call_start|>",))
    yield _tools("olmo3", ("<function_calls>", "</function_calls>"), ("<function_calls>", "<functions>"))
    yield _tools(
        "nemotron_nano_v2", ("<TOOLCALL>", "</TOOLCALL>"), ("<TOOLCALL>",),
        form=CallForm("<TOOLCALL>", "</TOOLCALL>", listed=True),
    )  # fmt: skip
    longcat = ("<longcat_tool_call>", "</longcat_tool_call>")
    yield _tools("longcat", longcat, ("<longcat_tool_call>",), form=CallForm(*longcat))
    yield _tools("apriel", _CALLS, ("<tool_calls>[", "</tool_calls>"), form=CallForm(*_CALLS, listed=True))
    yield _tools(
        "gigachat3", ("<|function_call|>", "<|message_sep|>", "<|role_sep|>"), ("<|role_sep|>", "function call")
    )
    yield _tools("apertus", ("<|tools_prefix|>", "<|tools_suffix|>"), ("<|tools_prefix|>",))
    yield _tools("hy_v3", _HY_V3, ("<tool_sep{}>", "':opensource'"))
    yield _tools("solar_open", _SOLAR, ("<|tool_call:begin|>",))
    yield _tools(
        "functionary_v3_1", ("<function=", "</function>"), ("<|start_header_id|>", "<function=", "</function>"),
        form=CallForm("<function=", "</function>", head="{name}>"),
    )  # fmt: skip
    yield ToolParserOffer(
        "functionary_v3_2", "lsv_parsers.recipients:functionary_v3_2", (), ("<|start_header_id|>", ">>>")
    )
    yield _tools("minicpm5", (), ('<function name="', '<param name="'))
    yield _tools("minimax_m3", (), ("]<]minimax[>[", "<invoke name="))
    yield _tools("kimi_k3", _KIMI_K3, ("<|open|>", "'argument'", "'call'"))
    yield _tools("muse_glimmer", (), ("<atem:function_calls>",))
    yield _tools("plamo3", (), ("<|plamo:begin_tool_request",))
    yield _tools("k2_horizon", _K2_HORIZON, ("<ifm|tool_call",))


@hookimpl
def lsv_tool_parsers() -> Iterable[ToolParserOffer]:
    yield _tools(
        "hermes", _CALL, ("<tool_call>", "arguments"), aliases=("qwen", "ernie45", "granite4"), form=CallForm(*_CALL)
    )
    yield _tools(
        "mistral", ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"), ("[TOOL_CALLS]",), short_ids=True,
        form=CallForm("[TOOL_CALLS]", listed=True, head="{name}[ARGS]"),
    )  # fmt: skip
    yield _tools(
        "llama3_json", ("<|python_tag|>",), ("<|start_header_id|>", '"parameters": '), aliases=("llama4_json", "llama3")
    )
    yield _tools("llama4_pythonic", ("<|python_start|>", "<|python_end|>"), ("<|header_start|>", "<|python_start|>"))
    yield _tools("pythonic", (), ("[func_name1(",))
    yield _tools("qwen3_coder", _CALL, ("<tool_call>", "<function="), aliases=("qwen3_xml", "mimo", "step3p5"))
    yield _tools("deepseek_v3", _DEEPSEEK, ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>", "```json"))
    yield _tools(
        "deepseek_v31", _DEEPSEEK, ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"),
        form=CallForm("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", head="{name}<｜tool▁sep｜>"),
    )  # fmt: skip
    yield _tools("glm45", _CALL, ("<tool_call>", "<arg_key>", "<arg_value>"), aliases=("glm47", "poolside_v1", "ling3"))
    yield _tools(
        "granite", ("<|tool_call|>", *_CALL), ("<|start_of_role|>", "<|tool_call|>"), aliases=("granite-20b-fc",),
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
    yield from _tools_of_2026()
    yield _tools("json", ())
    yield _tools("xlam", ("[TOOL_CALLS]", *_CALL))
    yield ToolParserOffer(
        "openai", "lsv_parsers.harmony:tools", _HARMONY, ("<|channel|>", "functions."), aliases=("gpt_oss",)
    )
    yield ToolParserOffer(
        "inkling", "lsv_parsers.inkling:tools", _INKLING, ("<|message_model|>", "<|content_invoke_tool_json|>")
    )
    yield ToolParserOffer("derived", "lsv_parsers.derived.parser:derive_parser", derives=True)


@hookimpl
def lsv_reasoning_parsers() -> Iterable[ReasoningParserOffer]:
    yield _thinking("deepseek_r1", _THINK, ("<｜Assistant｜>", "</think>"), aliases=("deepseek_v3", "deepseek_v4"))
    yield _thinking("qwen3", _THINK, _THINK, of="think", aliases=("mimo", "kimi_k2", "nemotron_v3", "olmo3", "ling3"))
    yield _thinking("glm45", _THINK, (*_THINK, "[gMASK]"), of="think", aliases=("glm47", "poolside_v1"))
    yield _thinking("granite", (), ("Here is my thought process:",))
    yield _thinking("granite_response", _THINK, ("<think>", "<response>"), aliases=("ernie45",))
    yield _thinking("hunyuan_a13b", _THINK, ("</think>", "<answer>"))
    yield _thinking("mistral", ("[THINK]", "[/THINK]"), ("[THINK]",))
    yield _thinking("seed_oss", ("<seed:think>", "</seed:think>"), ("<seed:think>",))
    yield _thinking("minimax", _THINK, (*_THINK, "]~b]"), of="deepseek_r1", aliases=("minimax_m2",))
    yield _thinking(
        "step3", _THINK, ("</think>",), of="deepseek_r1", architectures=("Step3VLForConditionalGeneration",),
        aliases=("step3p5",),
    )  # fmt: skip
    yield _thinking("gemma4", ("<|channel>", "<channel|>"), ("<|channel>thought", "<channel|>"))
    yield _thinking(
        "cohere_command4", _COHERE, ("<|START_THINKING|>",), of="cohere_command", aliases=("cohere_command3",)
    )
    yield _thinking("apertus", ("<|inner_prefix|>", "<|inner_suffix|>"), ("<|inner_prefix|>",))
    yield _thinking("hy_v3", ("<think:opensource>", "</think:opensource>"), ("<think{}>", "':opensource'"))
    yield _thinking("minimax_m3", ("<mm:think>", "</mm:think>"), ("<mm:think>",))
    yield _thinking(
        "solar_open", ("<|begin|>", "<|think|>", "<|content|>", "<|end|>"), ("<|begin|>assistant<|think|>",)
    )
    yield _thinking("kimi_k3", _KIMI_K3, ("<|open|>", "'think'", "'response'"))
    yield _thinking("plamo3", (), ("<|plamo:begin_think",))
    yield _thinking("apriel", (), ("[BEGIN FINAL RESPONSE]",))
    yield ReasoningParserOffer(
        "muse_glimmer", "lsv_parsers.recipients:muse_glimmer",
        ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"), ("to=self", "<|message|>"),
    )  # fmt: skip
    yield ReasoningParserOffer(
        "openai_gptoss", "lsv_parsers.harmony:thinking", _HARMONY, ("<|channel|>", "analysis"), aliases=("gpt_oss",)
    )
    yield ReasoningParserOffer(
        "inkling", "lsv_parsers.inkling:thinking", _INKLING, ("<|message_model|>", "<|content_thinking|>")
    )
    yield ReasoningParserOffer("derived", "lsv_parsers.derived.thoughts:derive_parser", derives=True)
