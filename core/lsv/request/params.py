"""What a user asks for: how tokens are sampled and when an answer ends, or how a prompt is pooled."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

import msgspec

from lsv.request.output_kind import RequestOutputKind, check_output_kind
from lsv.request.pooling import PoolingKind, PoolingTask
from lsv.request.repetition import RepetitionDetectionParams, read_repetition
from lsv.request.structured import StructuredOutputsParams
from lsv_base.errors import BadRequest

MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH = 1024
"""Characters of a stop string: as much text may have to be held back."""
MAX_BAD_WORDS = 128
MAX_BAD_WORDS_LENGTH = 16384
"""Characters of all bad words together."""
MAX_BAD_WORDS_TOKENS = 2048
"""Tokens of all bad words together, each in two spellings."""
MAX_N = 128
MAX_BEAM_STOPS = 64
"""Token ids that may end an answer of a beam search: each round looks at as many more tokens of each beam."""
MAX_LOGIT_BIAS = 1024

NO_TOKEN_LEFT = (
    "no token may be drawn: structured_outputs, allowed_token_ids, bad_words, min_tokens and logits processors "
    "together forbid every one; "
    "relax one of them"
)
"""Why a request fails that forbids all tokens."""


PROCESSOR_REFUSES = "arguments refused by logits processor "
"""How it begins, why a request fails whose arguments a logits processor of the engine does not take."""

CALLABLES = "callables"
"""The logits processor that calls the functions a request has brought along."""

Side = Literal["left", "right"]


class PoolingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a prompt becomes instead of being answered: a vector, probabilities or scores, as the model pools them."""

    task: PoolingTask | None = None
    """None is what the model is for."""

    normalize: bool | None = None
    """Whether a vector is scaled to unit length; None leaves it to the model."""

    use_activation: bool | None = None
    """Whether a classifier's scores become probabilities, as they do unless it is False."""

    dimensions: int | None = None
    """Cut vectors to this size, before they are scaled; for models that were trained for it."""

    kind: PoolingKind | None = None
    """How hidden states are pooled: admission fills it in, from what the model says of the task."""

    truncate_prompt_tokens: int | None = None
    """Keep only this many tokens of a longer prompt; -1 for as many as fit."""

    truncation_side: Side = "right"
    """Where text is left out; special tokens of the tokenizer at either end stay."""

    def __post_init__(self) -> None:
        _check_range("truncate_prompt_tokens", self.truncate_prompt_tokens, -1, 1 << 31)
        _check_range("dimensions", self.dimensions, 1, 1 << 31)
        if self.task is not None and self.task not in get_args(PoolingTask):
            known = ", ".join(get_args(PoolingTask))
            raise BadRequest(f"task must be one of {known}, got {self.task!r:.100}", param="task")
        _check_truncation(self)

    @property
    def needs_all(self) -> bool:
        """Whether the hidden state of every token is needed, so that none may come from the prefix cache."""
        return self.kind not in (None, "last")


class Range(NamedTuple):
    """The lowest and the highest value that a field takes; None in the field means "not given" and is not checked."""

    low: float
    high: float


_MOST = 1 << 31
_NO_SEED = -1
"""Clients of vLLM and llama.cpp send this value for "no seed"."""


RECOMMENDABLE = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""The fields of ``SamplingParams`` that a checkpoint or an operator may set for requests that do not say."""


class SamplingParams(msgspec.Struct, kw_only=True):
    """How tokens are drawn and when an answer ends; field for field what vLLM's users know.

    Checked on construction and when a field is set: a value out of range raises ``BadRequest`` naming the field. A
    field whose range is of integers takes integers only. Requests that have begun keep the values they began with.
    """

    n: Annotated[int, Range(1, MAX_N)] = 1
    best_of: Annotated[int | None, Range(1, MAX_N)] = None
    presence_penalty: Annotated[float, Range(-2.0, 2.0)] = 0.0
    frequency_penalty: Annotated[float, Range(-2.0, 2.0)] = 0.0
    repetition_penalty: Annotated[float, Range(1e-3, 100.0)] = 1.0
    temperature: Annotated[float, Range(0.0, 100.0)] = 1.0
    """0 is greedy."""
    top_p: Annotated[float, Range(1e-9, 1.0)] = 1.0
    top_k: Annotated[int, Range(-1, _MOST)] = -1
    """-1 and 0 keep all tokens."""
    min_p: Annotated[float, Range(0.0, 1.0)] = 0.0
    seed: Annotated[int | None, Range(-(1 << 63), (1 << 64) - 1)] = None
    """None and -1 use the engine's seed."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: Annotated[int | None, Range(1, _MOST)] = 16
    min_tokens: Annotated[int, Range(0, _MOST)] = 0
    logprobs: Annotated[int | None, Range(-1, _MOST)] = None
    """How many candidates a position shows; -1 for the whole vocabulary."""
    prompt_logprobs: Annotated[int | None, Range(-1, _MOST)] = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    """False leaves out the spaces that some tokenizers put between two special tokens that are shown."""
    truncate_prompt_tokens: Annotated[int | None, Range(-1, _MOST)] = None
    """Keep only this many tokens of a longer prompt; -1 for as many as fit."""
    truncation_side: Side = "left"
    """Where text is left out; special tokens of the tokenizer at either end stay."""
    logit_bias: Mapping[int, float] = {}
    allowed_token_ids: tuple[int, ...] | None = None
    logits_processors: Mapping[str, Any] = {}
    """Names of logits processors that plugins offer, and the arguments of each. Offline it may be a list of functions
    ``(output_ids, logits) -> logits`` or ``(prompt_ids, output_ids, logits) -> logits``."""
    extra_args: dict[str, Any] | None = None
    """What the engine's own logits processors (``--logits-processors``) are told of the request."""
    repetition_detection: RepetitionDetectionParams | None = None
    """What ends an answer that only repeats itself."""
    structured_outputs: StructuredOutputsParams | None = None
    """What form the answer must have."""
    guided_decoding: StructuredOutputsParams | None = None
    """An older name of ``structured_outputs``: what is given here is found there."""
    use_beam_search: bool = False
    """Search for the likeliest answers instead of drawing: ``best_of`` (or ``n``) beams, the best ``n`` are given."""
    length_penalty: Annotated[float, Range(-10.0, 10.0)] = 1.0
    """Of a beam search: answers are ranked by their log probability over their length to this power."""
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    """What each output of a request that is stepped or awaited holds; ``LLM`` always gives whole answers."""
    early_stopping: bool | Literal["never"] = False
    """Of a beam search: True ends it with enough answers, False when the best beam is behind them as it is, "never"
    when it can't get before them at any length.
    """

    def __post_init__(self) -> None:
        for name, default in _DEFAULTS.items():
            if getattr(self, name) is None:  # what vLLM's users write for "not given"
                msgspec.structs.force_setattr(self, name, default)
        if self.seed == _NO_SEED:
            msgspec.structs.force_setattr(self, "seed", None)
        for name, kind in _LISTS.items():
            _read_list(self, name, kind)
        _check_types(self)
        _read_structured(self)
        _read_processors(self)
        msgspec.structs.force_setattr(self, "repetition_detection", read_repetition(self.repetition_detection))
        for name, allowed in _RANGES.items():
            _check_range(name, getattr(self, name), *allowed)
        _check_rules(self)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def candidates(self) -> int:
        """How many answers come for this prompt, of which the best ``n`` are shown; a beam search sends just these."""
        return self.n if self.use_beam_search else self.beam_width

    @property
    def beam_width(self) -> int:
        """How many sequences are computed at a time for this prompt."""
        return self.best_of or self.n

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field, after checking it together with the others."""
        if name not in self.__struct_fields__:
            raise AttributeError(f"SamplingParams has no field {name!r}", name=name)
        checked = msgspec.structs.replace(self, **{name: value})
        for field in self.__struct_fields__:
            msgspec.structs.force_setattr(self, field, getattr(checked, field))

    def clone(self) -> SamplingParams:
        """A copy. Its values are immutable, except dictionaries."""
        return copy(self)

    def replace(self, **changes: Any) -> SamplingParams:
        """A copy with some fields changed, checked again."""
        return msgspec.structs.replace(self, **changes)


_RANGES: Mapping[str, Range] = {
    name: allowed
    for name, hint in get_type_hints(SamplingParams, include_extras=True).items()
    for allowed in getattr(hint, "__metadata__", ())
}


_HINTS = get_type_hints(SamplingParams)

_DEFAULTS: Mapping[str, Any] = {
    field.name: {} if field.default is msgspec.NODEFAULT else field.default
    for field in msgspec.structs.fields(SamplingParams)
    if type(None) not in get_args(_HINTS[field.name])
}
"""What None means where it is no value of its own."""

_FLAGS = tuple(name for name, hint in _HINTS.items() if hint is bool)

_LISTS: Mapping[str, type] = {"stop": str, "stop_token_ids": int, "bad_words": str, "allowed_token_ids": int}
"""The fields that hold several values, and of what type these are."""


def _read_list(params: SamplingParams, name: str, kind: type) -> None:
    """Users pass a single value, a list or a set where the record holds a tuple."""
    value = getattr(params, name)
    if isinstance(value, list | set | frozenset | range):
        value = tuple(value)
    elif type(value) is kind:
        value = (value,)
    if value is not None and not (isinstance(value, tuple) and set(map(type, value)) <= {kind}):
        held = "strings" if kind is str else "token ids"
        raise BadRequest(f"{name} must be a list of {held}, got {value!r:.100}", param=name)
    msgspec.structs.force_setattr(params, name, value)


def _check_types(params: SamplingParams) -> None:
    """What has no range: flags and the bias of tokens."""
    for name in _FLAGS:
        if not isinstance(getattr(params, name), bool):
            raise BadRequest(f"{name} must be true or false, got {told(getattr(params, name))}", param=name)
    bias: Any = params.logit_bias
    if not (
        isinstance(bias, Mapping) and set(map(type, bias)) <= {int} and set(map(type, bias.values())) <= {int, float}
    ):
        raise BadRequest(f"logit_bias must map token ids to numbers, got {bias!r:.100}", param="logit_bias")


def _read_processors(params: SamplingParams) -> None:
    """A list of functions is the argument of the processor that calls them."""
    given: Any = params.logits_processors
    if not given:
        given = {}
    elif isinstance(given, list | tuple) and all(map(callable, given)):
        given = {CALLABLES: tuple(given)}
    elif not isinstance(given, Mapping):
        raise BadRequest(
            "logits_processors must map the names of logits processors to their arguments, or be a list of functions, "
            f"got {given!r:.100}",
            param="logits_processors",
        )
    msgspec.structs.force_setattr(params, "logits_processors", given)
    if not isinstance(params.extra_args, dict | None):
        raise BadRequest(f"extra_args must be a dictionary, got {params.extra_args!r:.100}", param="extra_args")


def _read_structured(params: SamplingParams) -> None:
    """What form the answer must have, under whichever name it was given."""
    given = {name: getattr(params, name) for name in ("structured_outputs", "guided_decoding")}
    for name, value in given.items():
        if value is not None and not isinstance(value, StructuredOutputsParams):
            raise BadRequest(f"{name} takes a StructuredOutputsParams, got {value!r:.100}", param=name)
    if None not in given.values():
        raise BadRequest("structured_outputs and guided_decoding are one: give one of them", param="guided_decoding")
    asked = given["structured_outputs"] or given["guided_decoding"]
    msgspec.structs.force_setattr(params, "structured_outputs", asked)
    msgspec.structs.force_setattr(params, "guided_decoding", None)


def _check_range(name: str, value: float | None, low: float, high: float) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise BadRequest(f"{name} must be a number, got {value!r}", param=name)
    if isinstance(low, int) and not isinstance(value, int):
        raise BadRequest(f"{name} must be an integer, got {value!r}", param=name)
    if not low <= value <= high:
        raise BadRequest(f"{name} must be between {told(low)} and {told(high)}, got {told(value)}", param=name)


def told(value: object) -> str:
    """A value as an error shows it: a number of a thousand digits can't be written out."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    return f"{value:.12g}" if isinstance(value, float) else repr(value)[:64]


def _check_truncation(params: PoolingParams | SamplingParams) -> None:
    if params.truncate_prompt_tokens == 0:
        raise BadRequest("truncate_prompt_tokens must be at least 1, or -1, got 0", param="truncate_prompt_tokens")
    if params.truncation_side not in ("left", "right"):
        raise BadRequest(
            f"truncation_side must be left or right, got {told(params.truncation_side)}", param="truncation_side"
        )


_UNDRAWN: Mapping[str, tuple[Any, ...]] = {
    "temperature": (0.0, 1.0),
    "top_p": (1.0,),
    "top_k": (-1, 0),
    "min_p": (0.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "repetition_penalty": (1.0,),
    "bad_words": ((),),
    "logit_bias": ({},),
    "allowed_token_ids": (None,),
    "logits_processors": ({},),
    "structured_outputs": (None,),
    "repetition_detection": (None,),
}
"""What leaves answers as a beam search finds them: by the model's own log probabilities, to the end of a beam."""


def _check_beams(params: SamplingParams) -> None:
    if not isinstance(params.early_stopping, bool) and params.early_stopping != "never":
        raise BadRequest(
            f'early_stopping must be true, false or "never", got {told(params.early_stopping)}', param="early_stopping"
        )
    if not params.use_beam_search:
        for name, neutral in (("length_penalty", 1.0), ("early_stopping", False)):
            if getattr(params, name) != neutral:
                raise BadRequest(
                    f"{name} only applies to beam search: set use_beam_search, or leave it out", param=name
                )
        return
    for name, harmless in _UNDRAWN.items():
        if (value := getattr(params, name)) not in harmless:
            raise BadRequest(
                f"{name} can't be combined with use_beam_search, which goes by the model's own log probabilities and "
                f"draws nothing: leave it out, got {told(value)}",
                param=name,
            )
    if len(params.stop_token_ids) > MAX_BEAM_STOPS:
        raise BadRequest(
            f"stop_token_ids takes at most {MAX_BEAM_STOPS} token ids with use_beam_search, "
            f"got {len(params.stop_token_ids)}",
            param="stop_token_ids",
        )


def _check_rules(params: SamplingParams) -> None:
    """Rules between fields and on lists."""
    _check_truncation(params)
    if params.best_of is not None and params.best_of < params.n:
        raise BadRequest(f"best_of must be at least n={params.n}, got {params.best_of}", param="best_of")
    _check_beams(params)
    check_output_kind(params.output_kind, ranked=params.use_beam_search or params.beam_width > params.n)
    if params.greedy and params.candidates > 1 and not params.use_beam_search:
        raise BadRequest("n and best_of must be 1 when temperature is 0: every answer would be the same", param="n")
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise BadRequest(
            f"min_tokens must be at most max_tokens={params.max_tokens}, got {params.min_tokens}", param="min_tokens"
        )
    if params.stop and not params.detokenize:
        raise BadRequest("stop strings need detokenize=True", param="stop")
    if len(params.stop) > MAX_STOP_STRINGS or "" in params.stop:
        raise BadRequest(f"stop takes at most {MAX_STOP_STRINGS} strings, none of them empty", param="stop")
    if any(len(stop) > MAX_STOP_LENGTH for stop in params.stop):
        raise BadRequest(f"stop takes strings of at most {MAX_STOP_LENGTH} characters", param="stop")
    if len(params.bad_words) > MAX_BAD_WORDS or "" in params.bad_words:
        raise BadRequest(f"bad_words takes at most {MAX_BAD_WORDS} strings, none of them empty", param="bad_words")
    if sum(map(len, params.bad_words)) > MAX_BAD_WORDS_LENGTH:
        raise BadRequest(
            f"bad_words takes strings of at most {MAX_BAD_WORDS_LENGTH} characters together", param="bad_words"
        )
    if params.allowed_token_ids is not None and not params.allowed_token_ids:
        raise BadRequest("allowed_token_ids must not be empty", param="allowed_token_ids")
    if len(params.logit_bias) > MAX_LOGIT_BIAS:
        raise BadRequest(f"logit_bias takes at most {MAX_LOGIT_BIAS} tokens", param="logit_bias")
    for token, bias in params.logit_bias.items():
        if not -100.0 <= bias <= 100.0:
            raise BadRequest(
                f"logit_bias of token {token} must be between -100 and 100, got {bias}", param="logit_bias"
            )
