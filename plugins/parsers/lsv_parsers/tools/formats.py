"""The formats by name. Each is a fact about a family: its chat template shows it."""

from __future__ import annotations

from lsv_parsers.tools.format import EitherCall, ToolFormat
from lsv_parsers.tools.headed_call import HeadedCall, Named
from lsv_parsers.tools.json_call import JsonCall, NameKeyCall
from lsv_parsers.tools.keyed_call import KeyedCall
from lsv_parsers.tools.nested_tags import NestedTags
from lsv_parsers.tools.pythonic_call import PythonicCall
from lsv_parsers.tools.tagged_call import Key, TaggedCall

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


def _solar_name(head: str) -> Named:
    """The id precedes the name."""
    id, _, name = head.partition("<|tool_call:name|>")
    return name.strip(), id.strip() or None


def _plamo_name(head: str) -> Named:
    return head.strip().removesuffix("<|plamo:end_tool_name:plamo|>"), None


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


def _quoted_name(head: str) -> str:
    """The name in a tag, after the opening quote of its first attribute."""
    return head.partition('"')[0].strip()


def _typed_key(head: str) -> Key:
    """A key in a tag whose second attribute says whether the value is a text."""
    name, _, rest = head.partition('"')
    is_text = 'string="true' in rest or 'type="string' in rest
    return name.strip(), "text" if is_text else None


def _dsml(group: str) -> ToolFormat:
    mark = "｜DSML｜"
    return ToolFormat(
        TaggedCall(
            name_begin=f'<{mark}invoke name="', name_ends=('">',), key_begin=f'<{mark}parameter name="', key_end='">',
            value_end=f"</{mark}parameter>", close=f"</{mark}invoke>", outer=(f"</{mark}{group}>",), key=_typed_key,
        ),
        (f"<{mark}{group}>",), (f"</{mark}{group}>",), own=(f'<{mark}invoke name="',),
    )  # fmt: skip


deepseek_v32 = _dsml("function_calls")
deepseek_v4 = _dsml("tool_calls")

gemma4 = ToolFormat(
    KeyedCall("call:", '<|"|>'), ("<|tool_call>",), ("<tool_call|>",), single=True, own=("call:",)
)  # fmt: skip
functiongemma = ToolFormat(
    KeyedCall("call:", "<escape>"), ("<start_function_call>",), ("<end_function_call>",), single=True
)  # fmt: skip

cohere_command = ToolFormat(
    JsonCall(("tool_name",), ("parameters",)), ("<|START_ACTION|>",), ("<|END_ACTION|>",), separators=_LIST
)  # fmt: skip

lfm2 = ToolFormat(PythonicCall(), ("<|tool_call_start|>",), ("<|tool_call_end|>",), separators=_LIST)
olmo3 = ToolFormat(PythonicCall(), ("<function_calls>",), ("</function_calls>",))

nemotron_nano_v2 = ToolFormat(_JSON, ("<TOOLCALL>",), ("</TOOLCALL>",), separators=_LIST)
longcat = ToolFormat(_JSON, ("<longcat_tool_call>",), ("</longcat_tool_call>",), separators=_LIST)
apriel = jamba
gigachat3 = ToolFormat(
    _JSON, ("<|function_call|>", "<|message_sep|>\n\nfunction call<|role_sep|>\n"), ("<|message_sep|>",)
)  # fmt: skip

apertus = ToolFormat(NameKeyCall(), ("<|tools_prefix|>",), ("<|tools_suffix|>",), separators=_LIST)

hy_v3 = ToolFormat(
    TaggedCall(
        name_ends=("<tool_sep:opensource>", "</tool_call:opensource>"), key_begin="<arg_key:opensource>",
        key_end="</arg_key:opensource>", value_begin="<arg_value:opensource>", value_end="</arg_value:opensource>",
        close="</tool_call:opensource>",
    ),
    ("<tool_call:opensource>",), single=True, silent=("<tool_calls:opensource>", "</tool_calls:opensource>"),
)  # fmt: skip

solar_open = ToolFormat(
    HeadedCall(("<|tool_call:args|>",), _solar_name), ("<|tool_call:begin|>",), ("<|tool_call:end|>",), single=True,
    silent=("<|tool_calls|>", "<|calls|>"),
)  # fmt: skip

functionary_v3_1 = ToolFormat(HeadedCall((">",)), ("<function=",), ("</function>",), single=True)

minicpm5 = ToolFormat(
    TaggedCall(
        name_begin='<function name="', name_ends=('">',), key_begin='<param name="', key_end='">', value_end="</param>",
        close="</function>", verbatim=("<![CDATA[", "]]>"),
    ),
    own=('<function name="',),
)  # fmt: skip

minimax_m3 = ToolFormat(
    NestedTags("]<]minimax[>["), ("]<]minimax[>[<tool_call>",), ("]<]minimax[>[</tool_call>",),
    own=(']<]minimax[>[<invoke name="',),
)  # fmt: skip

kimi_k3 = ToolFormat(
    TaggedCall(
        name_begin='<|open|>call tool="', name_ends=("<|sep|>",), key_begin='<|open|>argument key="',
        key_end="<|sep|>", value_end="<|close|>argument<|sep|>", close="<|close|>call<|sep|>",
        outer=("<|close|>tools<|sep|>",), name=_quoted_name, key=_typed_key,
    ),
    ("<|open|>tools<|sep|>",), ("<|close|>tools<|sep|>",), silent=("<|close|>message<|sep|>", "<|end_of_msg|>"),
)  # fmt: skip

muse_glimmer = ToolFormat(
    TaggedCall(
        name_begin='<atem:invoke name="', name_ends=('">',), key_begin='<atem:parameter name="', key_end='">',
        value_end="</atem:parameter>", close="</atem:invoke>", outer=("</atem:function_calls>",),
    ),
    ("<atem:function_calls>",), ("</atem:function_calls>",),
)  # fmt: skip

plamo3 = ToolFormat(
    HeadedCall(("<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>",), _plamo_name),
    ("<|plamo:begin_tool_name:plamo|>",), ("<|plamo:end_tool_arguments:plamo|>",), single=True,
    silent=(
        "<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|>",
        "<|plamo:begin_tool_request:plamo|>", "<|plamo:end_tool_request:plamo|>",
    ),
)  # fmt: skip

k2_horizon = ToolFormat(
    EitherCall("{", _JSON, TaggedCall(
        name_ends=("<ifm|arg_key>", "</ifm|tool_call>"), key_begin="<ifm|arg_key>", key_end="</ifm|arg_key>",
        types=("<ifm|arg_type>", "</ifm|arg_type>"), value_begin="<ifm|arg_value>", value_end="</ifm|arg_value>",
        close="</ifm|tool_call>",
    )),
    ("<ifm|tool_call>",), ("</ifm|tool_call>",), single=True, silent=("<ifm|tool_calls>", "</ifm|tool_calls>"),
)  # fmt: skip

json = ToolFormat(_JSON, separators=_LIST, bare="{[")
"""What an answer is that was forced to be calls."""
