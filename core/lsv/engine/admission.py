"""The front door of every client: prompts and parameters are checked, completed and made into ``Submit`` messages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from lsv.config import EngineConfig, Fit
from lsv.engine.messages import Submit
from lsv.errors import BadRequest
from lsv.request.media import Media, Positions
from lsv.request.params import PoolingParams, SamplingParams
from lsv.text.tokenizer import Tokenizer

_MIB = 1 << 20


class Door(msgspec.Struct, frozen=True):
    """What requests are checked against: lengths in tokens, ids below ``vocab_size``."""

    max_model_len: int
    vocab_size: int
    max_logprobs: int

    @classmethod
    def of(cls, config: EngineConfig, fit: Fit | None, tokenizer: Tokenizer) -> Door:
        if fit is None:
            return cls(config.max_model_len, tokenizer.vocab_size, config.max_logprobs)
        return cls(fit.max_model_len, fit.vocab_size, config.max_logprobs)

    def check_prompt(self, prompt: Sequence[int], *, answer: int = 1) -> tuple[int, ...]:
        """Raises ``BadRequest`` for a prompt that is empty, too long for ``answer`` more tokens, or has unknown ids."""
        if not prompt:
            raise BadRequest("the prompt must hold at least one token, got an empty one", param="prompt")
        if len(prompt) + answer > self.max_model_len:
            raise BadRequest(
                f"This model's maximum context length is {self.max_model_len} tokens. However, you requested "
                f"{len(prompt) + answer} tokens ({len(prompt)} in the prompt and at least {answer} in the answer). "
                "Shorten the prompt or set truncate_prompt_tokens.",
                param="prompt",
            )
        self._check_ids(prompt, "prompt")
        return tuple(prompt)

    def check_params(self, params: SamplingParams) -> None:
        """Raises ``BadRequest`` for token ids and numbers of log probabilities that this engine does not have."""
        for name in ("logprobs", "prompt_logprobs"):
            asked = getattr(params, name)
            if asked is not None and 0 <= self.max_logprobs < asked:
                raise BadRequest(f"{name} must be at most {self.max_logprobs} (max_logprobs), got {asked}", param=name)
        self._check_ids(params.stop_token_ids, "stop_token_ids")
        self._check_ids(params.allowed_token_ids or (), "allowed_token_ids")
        self._check_ids(params.logit_bias, "logit_bias")

    def complete(
        self, prompt: Sequence[int], params: SamplingParams, *, media: bool = False
    ) -> tuple[tuple[int, ...], SamplingParams]:
        """The checked prompt, cut as asked for, and the parameters with their open ends closed.

        A prompt with ``media`` is never cut: they would lose their places.
        """
        self.check_params(params)
        keep = params.truncate_prompt_tokens
        if keep is not None and keep < len(prompt):
            if media:
                raise BadRequest(
                    f"truncate_prompt_tokens={keep} would cut a prompt of {len(prompt)} tokens with media: shorten it",
                    param="truncate_prompt_tokens",
                )
            prompt = prompt[-keep:]
        checked = self.check_prompt(prompt)
        if params.max_tokens is None:
            left = self.max_model_len - len(checked)
            params = params.replace(max_tokens=left, min_tokens=min(params.min_tokens, left))
        if params.candidates > params.n and params.logprobs is None:
            params = params.replace(logprobs=0)  # candidates are ranked by them
        return checked, params

    def _check_ids(self, ids: Iterable[int], name: str) -> None:
        for token in ids:
            if not isinstance(token, int) or not 0 <= token < self.vocab_size:
                raise BadRequest(
                    f"{name}: {token!r} is not a token id of this model (0 to {self.vocab_size - 1})", param=name
                )


def check_weight(submits: Sequence[Submit], most: int) -> None:
    """Raises ``BadRequest`` for media that are more than ``most`` bytes, sent along for each candidate."""
    size = sum(media.size for submit in submits for media in submit.media)
    if size > most:
        times = f" for n={len(submits)} answers" if len(submits) > 1 else ""
        raise BadRequest(
            f"the media of this request are {size / _MIB:.0f} MiB once prepared{times}, and at most {most >> 20} MiB "
            "are taken: send fewer, smaller ones, or shorter clips",
            param="messages",
        )


def make_submits(
    ids: Sequence[int],
    prompt: tuple[int, ...],
    params: SamplingParams,
    tokenizer: Tokenizer,
    *,
    name: str,
    media: tuple[Media, ...] = (),
    positions: Positions | None = None,
    priority: int = 0,
    salt: bytes = b"",
    trace: Mapping[str, str] | None = None,
) -> list[Submit]:
    """One message for each candidate; they share the prompt's blocks and differ in their seeds."""
    stop_ids = tuple(dict.fromkeys([*(() if params.ignore_eos else tokenizer.eos_ids), *params.stop_token_ids]))
    bad_words = encode_bad_words(params.bad_words, tokenizer)
    return [
        Submit(
            id=id,
            prompt=prompt,
            sampling=params,
            stop_ids=stop_ids,
            bad_words=bad_words,
            media=media,
            positions=positions,
            seed=None if params.seed is None else derive_seed(params.seed, candidate),
            priority=priority,
            salt=salt,
            name=name,
            trace=trace or {},
        )
        for candidate, id in enumerate(ids)
    ]


def make_pooling_submit(id: int, prompt: tuple[int, ...], params: PoolingParams, *, name: str) -> Submit:
    return Submit(id=id, prompt=prompt, pooling=params, name=name)


def derive_seed(seed: int, number: int) -> int:
    """The seed of sequence ``number``: the given one for the first, unrelated 64-bit ones for all others."""
    if number == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:8], "little")


def encode_bad_words(words: Iterable[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Token sequences of each word, as it stands at the beginning of a text and after a space."""
    found = (
        tuple(tokenizer.encode(spelling, add_special_tokens=False))
        for word in words
        for spelling in (word, " " + word.lstrip())
    )
    return tuple(dict.fromkeys(ids for ids in found if ids))
