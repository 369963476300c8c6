"""Beam search as newer vLLM has it offline: its parameters, and what ``LLM.beam_search`` gives."""

from __future__ import annotations

import msgspec

from lsv.request.outputs import CompletionOutput, RequestOutput, TokenLogprobs
from lsv.request.params import SamplingParams
from lsv.request.request import FinishReason
from lsv.request.structured import StructuredOutputsParams
from lsv.text.tokenizer import Tokenizer


class BeamSearchParams(msgspec.Struct, frozen=True):
    """How to search; ``LLM.generate`` takes the same and more as ``SamplingParams(use_beam_search=True, …)``.

    The search ends when no beam can get before the answers at any length (``early_stopping="never"``).
    """

    beam_width: int
    """How many beams there are, and answers."""

    max_tokens: int
    """The longest answer."""

    ignore_eos: bool = False
    """Whether answers go on behind the end that the model gives them."""

    temperature: float = 0.0
    """0, or 1, which is the same: beams are ranked by the model's own log probabilities."""

    length_penalty: float = 1.0
    """Answers are ranked by their log probability over their length to this power."""

    include_stop_str_in_output: bool = False
    """Whether the token that ends an answer is among its tokens."""

    structured_outputs: StructuredOutputsParams | None = None
    """None: a form can't be searched for."""

    def sampling(self) -> SamplingParams:
        """The same for ``LLM.generate``. Raises ``BadRequest`` for values that it does not take."""
        return SamplingParams(
            use_beam_search=True,
            n=self.beam_width,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            temperature=self.temperature,
            length_penalty=self.length_penalty,
            early_stopping="never",
            structured_outputs=self.structured_outputs,
            logprobs=0,
        )


class BeamSearchSequence(msgspec.Struct, kw_only=True):
    """One answer."""

    tokens: list[int]
    """The prompt and the answer."""

    logprobs: list[TokenLogprobs]
    """For each token of the answer, the one that ended it included: the token alone."""

    cum_logprob: float
    """The sum of these."""

    text: str
    """``tokens`` as text."""

    finish_reason: FinishReason | None
    """How it ended: ``stop`` or ``length``."""

    stop_reason: int | str | None
    """The token that ended it."""


class BeamSearchOutput(msgspec.Struct):
    """The answers to one prompt."""

    sequences: list[BeamSearchSequence]
    """The best first."""

    @classmethod
    def of(cls, output: RequestOutput, params: BeamSearchParams, tokenizer: Tokenizer) -> BeamSearchOutput:
        """From what ``LLM.generate`` gives. Raises what the request failed with."""
        prompt = list(output.checked().prompt_token_ids)
        return cls([_sequence(prompt, answer, params, tokenizer) for answer in output.outputs])


def _sequence(
    prompt: list[int], answer: CompletionOutput, params: BeamSearchParams, tokenizer: Tokenizer
) -> BeamSearchSequence:
    stopped = answer.finish_reason is FinishReason.STOP
    shown = answer.token_ids[:-1] if stopped and not params.include_stop_str_in_output else answer.token_ids
    tokens = [*prompt, *shown]
    return BeamSearchSequence(
        tokens=tokens,
        logprobs=answer.logprobs or [],
        cum_logprob=answer.cumulative_logprob or 0.0,
        text=tokenizer.decode(tokens),
        finish_reason=answer.finish_reason,
        stop_reason=answer.token_ids[-1] if stopped else None,
    )
