"""The parser of calls of a derived shape."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from lsv.text.answer_parser import ModelParser
from lsv.text.round_trip import Write
from lsv_parsers.derived.atoms import (
    SPACE,
    before,
    first_mark,
    has_hole,
    literal_end,
    literal_start,
    split_atoms,
    unlist,
)
from lsv_parsers.derived.derive import derive_calls
from lsv_parsers.derived.grammar import ShapeGrammar
from lsv_parsers.derived.shape import CallShape, JsonArguments, ObjectKeys, WrittenArguments
from lsv_parsers.tools.call import CallForm
from lsv_parsers.tools.format import ToolFormat
from lsv_parsers.tools.headed_call import HeadedCall
from lsv_parsers.tools.json_call import JsonCall, NameKeyCall
from lsv_parsers.tools.keyed_call import KeyedCall
from lsv_parsers.tools.pythonic_call import PythonicCall
from lsv_parsers.tools.tagged_call import Key, TaggedCall

_LIST = "[],;"


def derive_parser(write: Write) -> ModelParser | None:
    """The parser of the calls that a chat template writes, with the grammar of their form."""
    shape = derive_calls(write)
    format = None if shape is None else make_format(shape)
    if shape is None or format is None:
        return None
    return ModelParser(format, _marks(shape), ShapeGrammar(shape))


def make_format(shape: CallShape) -> ToolFormat | None:
    """The reader of calls of this shape; None if no known form of call fits."""
    if shape.keys is not None:
        return _around_calls(shape, _object_call(shape.keys), shape.keys.head, shape.keys.tail, bare="{[")
    if isinstance(shape.arguments, JsonArguments):
        return _headed(shape)
    if _is_python(shape, shape.arguments):
        return _around_calls(shape, PythonicCall(), "", shape.end, bare="[")
    if shape.arguments.quote:
        return _keyed(shape, shape.arguments)
    return _tagged(shape, shape.arguments)


def _object_call(keys: ObjectKeys) -> CallForm:
    if not keys.name:
        return NameKeyCall()
    return JsonCall((keys.name,), (keys.arguments,), keys.wrapper, keys.others)


def _around_calls(shape: CallShape, call: CallForm, head: str, tail: str, *, bare: str) -> ToolFormat:
    """The format of calls that contain ``head`` and ``tail``, with or without a mark for each call."""
    own, group = unlist(before(shape.begin, head)), unlist(shape.open)
    begin = own or group
    end = shape.end[len(tail) :] if own else shape.close
    return ToolFormat(
        call, _some(begin), _some(end.lstrip(SPACE + _LIST).rstrip()), separators=_LIST,
        bare="" if begin else bare, doubtful=_some(begin) if _is_plain(begin) else (),
        silent=(*_some(group), *_some(shape.close.strip(SPACE + _LIST))) if own else (),
    )  # fmt: skip


def _headed(shape: CallShape) -> ToolFormat | None:
    begin = literal_start(shape.begin).strip()
    after_name, end = literal_start(shape.head_end), literal_end(shape.head_end)
    if not begin:
        return None
    name = HeadedName(literal_end(shape.begin) if has_hole(shape.begin) else "", after_name)
    call = HeadedCall((end.strip(" ") or "{",), lambda head: (name(head), None))
    return ToolFormat(
        call, (begin,), _some(shape.end.strip()), single=True, doubtful=(begin,) if _is_plain(begin) else (),
        silent=(*_some(shape.open.strip()), *_some(shape.close.strip())),
    )  # fmt: skip


def _is_python(shape: CallShape, arguments: WrittenArguments) -> bool:
    return (shape.head_end, arguments.value_begin, arguments.between.strip()) == ("(", "=", ",") and (
        arguments.quote in ("'", '"') and not arguments.key_begin
    )


def _keyed(shape: CallShape, arguments: WrittenArguments) -> ToolFormat | None:
    begin = shape.begin.strip() or shape.open.strip()
    signs = (shape.head_end, arguments.value_begin.strip(), arguments.between.strip())
    if signs != ("{", ":", ",") or not begin or not shape.end.startswith("}"):
        return None
    end = shape.end[1:].strip() if shape.begin.strip() else shape.close.strip()
    call = KeyedCall("", arguments.quote)
    return ToolFormat(call, (begin,), _some(end), single=bool(shape.begin.strip()), separators=_LIST)


def _tagged(shape: CallShape, arguments: WrittenArguments) -> ToolFormat | None:
    begin, end, group = shape.begin.strip(), shape.end.strip(), shape.open.strip()
    close = shape.close.strip()
    if group:
        begins, name_begin, inner, outer = group, begin, end, close
    else:
        begins, name_begin = map(str.strip, first_mark(begin))
        inner, outer = map(str.strip, first_mark(end)) if name_begin else (end, "")
    value_end = arguments.value_end.strip()
    if not (begins and inner and value_end and arguments.key_begin.strip()):
        return None
    key_end, value_begin, key = _key(arguments)
    numbered = has_hole(shape.head_end)
    call = TaggedCall(
        name_begin=name_begin, name=HeadedName("", literal_start(shape.head_end)) if numbered else str.strip,
        name_ends=_name_ends("" if numbered else shape.head_end, arguments.key_begin.strip(), inner),
        key_begin=arguments.key_begin.strip(), key_end=key_end, value_begin=value_begin, value_end=value_end,
        close=inner, outer=_some(outer), key=key,
        lines=arguments.value_begin.endswith("\n") and arguments.value_end.startswith("\n"),
    )  # fmt: skip
    return ToolFormat(
        call, (begins,), _some(outer), own=_some(name_begin), single=not name_begin,
        doubtful=(begins,) if _is_plain(begins) else (), silent=() if group else _some(close),
    )  # fmt: skip


def _name_ends(head_end: str, key_begin: str, close: str) -> tuple[str, ...]:
    return (head_end.strip(),) if head_end.strip() else ("\n", key_begin, close)


def _key(arguments: WrittenArguments) -> tuple[str, str, KeyOf]:
    """The end of a key, the beginning of a value after further marks, and the reader of keys."""
    if arguments.text_begin != arguments.value_begin:
        before, after = _shared_ends(arguments.text_begin, arguments.value_begin)
        return after, "", KeyOf(before, arguments.text_begin[len(before) : len(arguments.text_begin) - len(after)])
    end, _, begin = arguments.value_begin.strip().partition("\n")
    return end, begin.strip(), KeyOf()


def _shared_ends(one: str, other: str) -> tuple[str, str]:
    """The common beginning and the common end of two texts, without overlap."""
    size = min(len(one), len(other))
    head = next((at for at in range(size) if one[at] != other[at]), size)
    tail = next((at for at in range(size - head) if one[-1 - at] != other[-1 - at]), size - head)
    return one[:head], one[len(one) - tail :]


@dataclass(frozen=True)
class KeyOf:
    """Reads a key before ``delimiter``. A following ``text_mark`` means that the value is a text."""

    delimiter: str = ""
    text_mark: str = ""

    def __call__(self, head: str) -> Key:
        if not self.delimiter:
            return head.strip(), None
        name, _, rest = head.partition(self.delimiter)
        return name.strip(), "text" if rest == self.text_mark else None


@dataclass(frozen=True)
class HeadedName:
    """Reads a name between ``before`` and ``after``, with an id or a number outside them."""

    before: str
    after: str

    def __call__(self, head: str) -> str:
        name = head.partition(self.before)[2] if self.before else head
        return (name.partition(self.after)[0] if self.after else name).strip()


def _is_plain(mark: str) -> bool:
    """Whether other text may contain this mark, too."""
    return bool(mark) and mark[0] not in "<["


def _marks(shape: CallShape) -> tuple[str, ...]:
    """All marks around names and values, which may be special tokens."""
    texts = [shape.open, shape.begin, shape.head_end, shape.end, shape.between, shape.close]
    if isinstance(shape.arguments, WrittenArguments):
        texts += astuple(shape.arguments)
    found = {atom for text in texts for atom in split_atoms(text) if len(atom) > 1 and not atom.isalnum()}
    return tuple(sorted({*found, *filter(None, map(str.strip, texts))}))


def _some(mark: str) -> tuple[str, ...]:
    return (mark,) if mark else ()
