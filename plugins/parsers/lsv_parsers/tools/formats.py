"""The formats by name. Each is a fact about a family: its chat template shows it."""

from __future__ import annotations

from lsv_parsers.tools.format import EitherCall, ToolFormat
from lsv_parsers.tools.headed_call import HeadedCall, Named
from lsv_parsers.tools.json_call import JsonCall
from lsv_parsers.tools.pythonic_call import PythonicCall
from lsv_parsers.tools.tagged_call import TaggedCall

_LIST = "[],;"
_JSON = JsonCall()


def _deepseek_name(head: str) -> Named:
    return head.rpartition("<｜tool▁sep｜>")[2].strip(), None


def _kimi_name(head: str) -> Named:
    """``functions.NAME:INDEX`` is the call's id."""
    id = head.strip()
    name, _, index = id.rpartition(":")
    return (name if name and index.isdigit() else id).removeprefix("functions."), id


def _mistral_name(head: str) -> Named:
    """Some versions write the id behind the name."""
    name, _, id = head.partition("[CALL_ID]")
    return name.strip(), id.strip() or None


def _tags(outer: str) -> TaggedCall:
    return TaggedCall(
        name_begin="<function=", name_ends=(">",), key_begin="<parameter=", key_end=">", value_end="</parameter>",
        close="</function>", lines=True, outer=(outer,),
    )  # fmt: skip


hermes = ToolFormat(_JSON, ("<tool_call>",), ("</tool_call>",), separators=_LIST)

mistral = ToolFormat(
    EitherCall("{", _JSON, HeadedCall(("[ARGS]", "{"), _mistral_name)), ("[TOOL_CALLS]",), separators=_LIST
)

llama3_json = ToolFormat(_JSON, ("<|python_tag|>",), separators=_LIST, bare="{[", doubtful=("<|python_tag|>",))

llama4_pythonic = ToolFormat(
    PythonicCall(), ("<|python_start|>",), ("<|python_end|>",), separators=_LIST, bare="["
)  # fmt: skip

pythonic = ToolFormat(PythonicCall(), separators=_LIST, bare="[")

qwen3_coder = ToolFormat(_tags("</tool_call>"), ("<tool_call>",), ("</tool_call>",), own=("<function=",))

deepseek_v3 = ToolFormat(
    HeadedCall(("\n```json", "\n```"), _deepseek_name, fences=("```",)),
    ("<｜tool▁call▁begin｜>",), ("<｜tool▁call▁end｜>",), single=True,
    silent=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
)  # fmt: skip

deepseek_v31 = ToolFormat(
    HeadedCall(("<｜tool▁sep｜>",)), ("<｜tool▁call▁begin｜>",), ("<｜tool▁call▁end｜>",), single=True,
    silent=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
)  # fmt: skip

glm45 = ToolFormat(
    TaggedCall(
        name_ends=("\n", "<arg_key>", "</tool_call>"), key_begin="<arg_key>", key_end="</arg_key>",
        value_begin="<arg_value>", value_end="</arg_value>", close="</tool_call>",
    ),
    ("<tool_call>",), single=True,
)  # fmt: skip

granite = ToolFormat(
    _JSON, ("<|tool_call|>", "<tool_call>", "<function_call>"), ("</tool_call>",), separators=_LIST
)  # fmt: skip

internlm = ToolFormat(_JSON, ("<|action_start|><|plugin|>",), ("<|action_end|>",), separators=_LIST)

jamba = ToolFormat(_JSON, ("<tool_calls>",), ("</tool_calls>",), separators=_LIST)
hunyuan_a13b = jamba
minimax = jamba

minimax_m2 = ToolFormat(
    TaggedCall(
        name_begin='<invoke name="', name_ends=('">',), key_begin='<parameter name="', key_end='">',
        value_end="</parameter>", close="</invoke>", outer=("</minimax:tool_call>",),
    ),
    ("<minimax:tool_call>",), ("</minimax:tool_call>",), own=('<invoke name="',),
)  # fmt: skip

phi4_mini_json = ToolFormat(_JSON, ("functools",), separators=_LIST)

kimi_k2 = ToolFormat(
    HeadedCall(("<|tool_call_argument_begin|>",), _kimi_name), ("<|tool_call_begin|>",), ("<|tool_call_end|>",),
    single=True, silent=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
)  # fmt: skip

seed_oss = ToolFormat(
    _tags("</seed:tool_call>"), ("<seed:tool_call>",), ("</seed:tool_call>",), own=("<function=",)
)  # fmt: skip

xlam = ToolFormat(
    _JSON, ("[TOOL_CALLS]", "<tool_call>", "```json"), ("</tool_call>", "```"), separators=_LIST, bare="{[",
    doubtful=("```json",),
)  # fmt: skip

json = ToolFormat(_JSON, separators=_LIST, bare="{[")
"""What an answer is that was forced to be calls."""
