"""Admission: every request, online and offline, is checked and completed here before it is sent to an engine."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Annotated, Any

import msgspec

from lsv.config import EngineConfig, Fit
from lsv.engine.messages import Submit
from lsv.request.encoded import EncodedText
from lsv.request.media import cross_item
from lsv.request.params import MAX_BAD_WORDS_TOKENS, NO_TOKEN_LEFT, PoolingParams, SamplingParams, told
from lsv.request.pooling import Pooler
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv.text.frame import Frame
from lsv.text.tokenizer import NoTokenizer, Tokenizer
from lsv_base.errors import BadRequest, ContextTooLong

log = logging.getLogger(__name__)

_MIB = 1 << 20
MOST_MEDIA = 512 << 20
"""Bytes of prepared media that a request may send: well below what a frame holds, so that one reaches all ranks."""
LETTERS = 8
"""Characters for each token of the context that are tokenised in any case: text has about four."""
_CUT = 64
"""Tokens by which the beginning may have more than the same characters have in the whole text, where it is cut."""


_TOLD_OF_STOPS: set[tuple[str, int]] = set()
"""Models, by name and vocabulary, whose requests have named stop tokens that they do not have: the log says it once."""


class Admission(msgspec.Struct, frozen=True):
    """What requests are checked against."""

    max_model_len: int
    """Most tokens of a prompt and its answer together."""

    vocab_size: int
    """Token ids are below it."""

    max_logprobs: int
    """Most log probabilities a position may show; -1 for any number."""

    pooler: Pooler = Pooler()
    """What the model is for, and how it pools."""

    encoded: EncodedText | None = None
    """How prompts begin whose text the model encodes."""

    source: int | None = None
    """Most tokens of a text to encode; None where a prompt's bound is ``max_model_len``."""

    model: str = ""
    """The model's name, for errors."""

    frame: Frame = Frame()
    """The special tokens around a text, which truncation keeps."""

    text: bool = True
    """Whether answers become text, in which stop strings are looked for."""

    @classmethod
    def of(cls, config: EngineConfig, fit: Fit | None, tokenizer: Tokenizer) -> Admission:
        """The bounds of an engine; while it is loading (``fit`` is None), those it was configured with."""
        length = config.max_model_len if fit is None else fit.max_model_len
        vocab_size = tokenizer.vocab_size if fit is None else fit.vocab_size
        return cls(
            max_model_len=length,
            vocab_size=vocab_size,
            max_logprobs=config.max_logprobs,
            pooler=config.pooler,
            encoded=config.encoded,
            source=_source(config, fit),
            model=config.served_names[0],
            frame=tokenizer.frame,
            text=not isinstance(tokenizer, NoTokenizer),
        )

    @property
    def longest_text(self) -> int:
        """Most tokens of what a request asks about: the text to encode, or the prompt."""
        return self.source or self.max_model_len

    def admit(
        self,
        request: RequestSpec,
        *,
        field: str = "prompt",
        default_max_tokens: int | None = None,
        strict: bool = False,
    ) -> RequestSpec:
        """The request as it will run: checked, its prompt truncated as it asks, its parameters completed.

        ``field`` is the frontend's name for the prompt; errors use it. An answer without ``max_tokens`` gets
        ``default_max_tokens`` or what is left of the context, whichever is less; None is all that is left.
        ``max_tokens`` beyond that is refused if ``strict``; otherwise the answer ends with the context.
        Admitting a request again changes nothing. Raises ``BadRequest``, ``ContextTooLong`` among them.
        """
        if request.sampling is not None:
            self.pooler.check("generate", self.model)
        elif request.pooling is not None:
            if self.encoded is not None:
                raise BadRequest(
                    f"{self.model} encodes text for answers that attend to it, and makes no vectors", param="model"
                )
            request = msgspec.structs.replace(request, pooling=self.check_pooling(request.pooling))
        params = None if request.sampling is None else self._checked(request.sampling)
        if params is not None and params.use_beam_search and request.thinking is not None:
            raise BadRequest(
                "thinking_token_budget can't be combined with use_beam_search, which goes by the model's own log "
                "probabilities: leave it out",
                param="thinking_token_budget",
            )
        prompts = tuple(self._prompt(prompt, request, field) for prompt in request.prompts)
        left = [self._left(prompt, 0 if params is None else 1, field) for prompt in prompts]
        if params is None:
            return msgspec.structs.replace(request, prompts=prompts)
        if params.max_tokens is None:
            most = min(default_max_tokens or max(left), max(left))
            least = params.min_tokens if strict else min(params.min_tokens, most)
            params = params.replace(max_tokens=most, min_tokens=least)
        elif strict and params.max_tokens > min(left):
            raise self._too_long(max(prompts, key=lambda prompt: len(prompt.ids)), params.max_tokens, field)
        if (params.use_beam_search or params.candidates > params.n) and params.logprobs is None:
            params = params.replace(logprobs=0)  # candidates are ranked by them
        return msgspec.structs.replace(request, prompts=prompts, sampling=params)

    def encode(self, text: str, tokenizer: Tokenizer, *, special: bool, field: str) -> list[int]:
        """The ids of a text that must fit the context. Raises ``ContextTooLong`` for one that does not: by its length
        if it is too long however it is tokenised, else by its beginning, so that the context bounds the work.
        """
        most = self.longest_text
        if len(text) > most * tokenizer.longest:
            raise self._too_many(f"{len(text)} characters, and a token has at most {tokenizer.longest}", field)
        beginning = text[: LETTERS * most]
        if len(beginning) < len(text):
            ids = tokenizer.encode(beginning, add_special_tokens=special)
            if len(ids) > most + _CUT:
                raise self._too_many(f"more than {most} tokens", field)
        ids = tokenizer.encode(text, add_special_tokens=special)
        if len(ids) > most:
            raise self._too_many(f"{len(ids)} tokens", field)
        return ids

    def check_ids(self, ids: Iterable[int], field: str) -> None:
        """Raises ``BadRequest`` for anything in ``ids`` that is not a token id of this model."""
        ids = ids if isinstance(ids, tuple) else tuple(ids)
        try:
            msgspec.convert(ids, _ids_below(self.vocab_size))  # in C: a prompt may have a hundred thousand
        except msgspec.ValidationError:
            for token in ids:
                if not isinstance(token, int) or not 0 <= token < self.vocab_size:
                    raise BadRequest(
                        f"{field}: {told(token)} is not a token id of this model (0 to {self.vocab_size - 1})",
                        param=field,
                    ) from None

    def check_text(self, field: str) -> None:
        """Raises ``BadRequest`` for a ``field`` that is about text where no tokenizer makes any."""
        if not self.text:
            raise BadRequest(
                f"{field} is about text, and the tokenizer was not loaded (skip_tokenizer_init): use token ids",
                param=field,
            )

    def candidates_shown(self, asked: int | None, field: str) -> int | None:
        """How many log probabilities a position shows where ``asked`` were, -1 for all. Raises ``BadRequest``."""
        if asked is None:
            return None
        wanted = self.vocab_size if asked == -1 else asked
        if 0 <= self.max_logprobs < wanted:
            raise BadRequest(f"{field} must be at most {self.max_logprobs} (--max-logprobs), got {asked}", param=field)
        return wanted

    def _prompt(self, prompt: Prompt, request: RequestSpec, field: str) -> Prompt:
        """The prompt, truncated as the request asks; media would lose their places."""
        params = request.sampling or request.pooling
        keep = None if params is None else params.truncate_prompt_tokens
        if keep == -1:
            answer = 0 if request.sampling is None else request.sampling.max_tokens or 1
            keep = max(1, self.source or self.max_model_len - answer)
        item = None if self.encoded is None else cross_item(prompt.media)
        size = len(prompt.ids) if item is None else item.count
        if params is not None and keep is not None and keep < size:
            if prompt.media or prompt.second:
                what = "a text to encode" if item is not None else "media" if prompt.media else "two texts"
                raise BadRequest(
                    f"truncate_prompt_tokens={keep} would cut a prompt of {size} tokens with {what}: shorten it",
                    param="truncate_prompt_tokens",
                )
            prompt = Prompt(ids=self.frame.truncate(prompt.ids, keep, params.truncation_side))
        if not prompt.ids:
            raise BadRequest(f"{field} must hold at least one token, got an empty prompt", param=field)
        if self.encoded is not None:
            prompt = self.encoded.complete(prompt)
        self.check_ids(prompt.ids, field)
        return prompt

    def check_pooling(self, params: PoolingParams) -> PoolingParams:
        """The parameters, with the task and how it is pooled. Raises ``BadRequest`` for what the model can't do."""
        task = params.task or self.pooler.own
        self.pooler.check(task, self.model)
        if params.dimensions is not None:
            self.pooler.check_dimensions(params.dimensions)
        return msgspec.structs.replace(params, task=task, kind=self.pooler.kind_of(task))

    def too_long(self, size: int, field: str) -> ContextTooLong:
        """The error for a prompt of so many tokens."""
        return self._too_many(f"{size} tokens", field)

    def _checked(self, params: SamplingParams) -> SamplingParams:
        """The parameters, with each token id once. Raises ``BadRequest`` for token ids and numbers of log probabilities
        that this engine does not have, for stop strings where there is no text, and for parameters that leave no token
        to be drawn.
        """
        if params.stop:
            self.check_text("stop")
        scored = {name: self.candidates_shown(getattr(params, name), name) for name in ("logprobs", "prompt_logprobs")}
        if any(getattr(params, name) != shown for name, shown in scored.items()):
            params = params.replace(**scored)
        self.check_ids(params.logit_bias, "logit_bias")
        stops = self._distinct(self._known(params.stop_token_ids), "stop_token_ids")
        allowed = params.allowed_token_ids and self._distinct(params.allowed_token_ids, "allowed_token_ids")
        if params.min_tokens and len(stops) == self.vocab_size:
            raise BadRequest(NO_TOKEN_LEFT, param="stop_token_ids")
        if stops is params.stop_token_ids and allowed is params.allowed_token_ids:
            return params
        return params.replace(stop_token_ids=stops, allowed_token_ids=allowed)

    def _known(self, stops: tuple[int, ...]) -> tuple[int, ...]:
        """Drop ids outside the model's vocabulary, which can't end an answer. Clients send ids of several models."""
        unknown = [token for token in stops if not 0 <= token < self.vocab_size]
        if not unknown:
            return stops
        if (self.model, self.vocab_size) not in _TOLD_OF_STOPS:
            _TOLD_OF_STOPS.add((self.model, self.vocab_size))
            log.warning(
                "stop_token_ids: ignored %s, which is outside this model's vocabulary (0 to %d) and can't end "
                "an answer; further ones are ignored, too", told(unknown[0]), self.vocab_size - 1,
            )  # fmt: skip
        return tuple(token for token in stops if 0 <= token < self.vocab_size)

    def _distinct(self, ids: tuple[int, ...], field: str) -> tuple[int, ...]:
        """Each of the ids once; the very same tuple where that is so already."""
        if len(ids) > self.vocab_size:
            raise BadRequest(
                f"{field} takes at most {self.vocab_size} token ids, as many as this model has, got {len(ids)}",
                param=field,
            )
        self.check_ids(ids, field)
        distinct = tuple(dict.fromkeys(ids))
        return ids if len(distinct) == len(ids) else distinct

    def _left(self, prompt: Prompt, least: int, field: str) -> int:
        """Tokens of the context that the prompt leaves. Raises ``ContextTooLong`` if they are fewer than ``least``."""
        left = self.max_model_len - len(prompt.ids)
        if left < least:
            raise self._too_long(prompt, least, field)
        return left

    def _too_many(self, found: str, field: str) -> ContextTooLong:
        return ContextTooLong(
            f"This model's maximum context length is {self.longest_text} tokens. However, your prompt has {found}. "
            "Shorten it or set truncate_prompt_tokens.",
            param=field,
        )

    def _too_long(self, prompt: Prompt, answer: int, field: str) -> ContextTooLong:
        size = len(prompt.ids)
        left = self.max_model_len - size
        remedy = f"Shorten the prompt, set truncate_prompt_tokens, or ask for at most {left}."
        return ContextTooLong(
            f"This model's maximum context length is {self.max_model_len} tokens. However, you requested "
            f"{size + answer} tokens ({size} in the prompt, {answer} for the answer). "
            + (remedy if left > 0 else "Shorten the prompt or set truncate_prompt_tokens."),
            param=field,
        )


def check_media_size(prompts: Iterable[Prompt], field: str = "messages") -> None:
    """Raises ``BadRequest`` for prompts of one request with more than ``MOST_MEDIA`` bytes of media."""
    size = sum(media.size for prompt in prompts for media in prompt.media)
    if size > MOST_MEDIA:
        raise BadRequest(
            f"the media of this request are {size / _MIB:.0f} MiB once prepared, and at most {MOST_MEDIA >> 20} MiB "
            "are taken: send fewer, smaller ones, or shorter videos",
            param=field,
        )


def make_submit(id: int, request: RequestSpec, tokenizer: Tokenizer) -> Submit:
    """The message for an admitted request, under this id."""
    prompts = tuple(
        prompt
        if prompt.text is None and prompt.encoder_text is None
        else msgspec.structs.replace(prompt, text=None, encoder_text=None)  # the engine does not need them
        for prompt in request.prompts
    )
    request = msgspec.structs.replace(request, prompts=prompts)
    params = request.sampling
    if params is None:
        return Submit(id=id, spec=request)
    stop_ids = tuple(dict.fromkeys([*(() if params.ignore_eos else tokenizer.eos_ids), *params.stop_token_ids]))
    bad_words = encode_bad_words(params.bad_words, tokenizer, request.salt)
    _check_choice(params, stop_ids, bad_words)
    return Submit(id=id, spec=request, stop_ids=stop_ids, bad_words=bad_words)


def _check_choice(params: SamplingParams, stop_ids: Iterable[int], bad_words: Iterable[tuple[int, ...]]) -> None:
    """Raises ``BadRequest`` where all that is allowed is forbidden, too, before the first token."""
    if params.allowed_token_ids is None:
        return
    forbidden = {word[0] for word in bad_words if len(word) == 1}.union(stop_ids if params.min_tokens else ())
    if forbidden.issuperset(params.allowed_token_ids):
        raise BadRequest(NO_TOKEN_LEFT, param="allowed_token_ids")


@lru_cache(maxsize=64)  # all prompts of a body ask for the same words, and each of them is admitted
def encode_bad_words(words: tuple[str, ...], tokenizer: Tokenizer, salt: bytes = b"") -> tuple[tuple[int, ...], ...]:
    """Token sequences of each word, at the beginning of a text and after a space.

    They are cached for each ``salt``, because tokenising a long list takes measurable time. Raises ``BadRequest`` for
    more than ``MAX_BAD_WORDS_TOKENS`` in all.
    """
    encoded = (
        tuple(tokenizer.encode(spelling, add_special_tokens=False))
        for word in words
        for spelling in (word, " " + word.lstrip())
    )
    found = tuple(dict.fromkeys(ids for ids in encoded if ids))
    if sum(map(len, found)) > MAX_BAD_WORDS_TOKENS:
        raise BadRequest(
            f"bad_words takes at most {MAX_BAD_WORDS_TOKENS} tokens together, each word as it stands at the beginning "
            "of a text and after a space",
            param="bad_words",
        )
    return found


def _source(config: EngineConfig, fit: Fit | None) -> int | None:
    """Most tokens of a text that the model encodes; None for a model that does not, and while it is loading."""
    if config.encoded is None or fit is None:
        return None
    return next((group["cross_len"] for group in fit.groups if group.get("cross_len") is not None), None)


@cache
def _ids_below(vocab_size: int) -> Any:
    """The type of token ids of a model."""
    return tuple[Annotated[int, msgspec.Meta(ge=0, lt=vocab_size)], ...]
