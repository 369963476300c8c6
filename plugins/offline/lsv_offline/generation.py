"""Requests of offline users on their way: from what was asked and the chunks that come to whole outputs."""

from __future__ import annotations

import msgspec

from lsv.engine.answers import Answers
from lsv.engine.client_base import read_vector
from lsv.engine.messages import Update
from lsv.request.encoded import encoded_ids
from lsv.request.output_kind import RequestOutputKind
from lsv.request.outputs import CompletionOutput, EmbeddingOutput, EmbeddingRequestOutput, RequestOutput, by_token
from lsv.request.params import SamplingParams
from lsv.request.spec import RequestSpec
from lsv_base.errors import LsvError


class Generation:
    """A generating request: what was asked, what of it was admitted, and its answers so far."""

    def __init__(self, asked: RequestSpec, params: SamplingParams, admitted: RequestSpec) -> None:
        self.answers = Answers(params)
        self._asked = asked
        self._prompt = admitted.prompt
        self._kind = params.output_kind
        self._shown: dict[int, tuple[int, int]] = {}
        """Characters and tokens of each answer that earlier outputs have shown."""
        self._show_logprobs = params.logprobs is not None  # those that only ranking needs are not shown

    def failed(self, error: LsvError) -> RequestOutput:
        """The last output of a request that failed."""
        self.answers.fail()
        return msgspec.structs.replace(self.output(), error=error.record())

    def update(self) -> RequestOutput | None:
        """What the request shows now, by its ``output_kind``; None for nothing yet."""
        whole = self.output()
        if self._kind is RequestOutputKind.FINAL_ONLY and not whole.finished:
            return None
        if self._kind is RequestOutputKind.DELTA:
            return msgspec.structs.replace(whole, outputs=[self._since_last(one) for one in whole.outputs])
        return whole

    def _since_last(self, answer: CompletionOutput) -> CompletionOutput:
        characters, tokens = self._shown.get(answer.index, (0, 0))
        self._shown[answer.index] = (len(answer.text), len(answer.token_ids))
        return msgspec.structs.replace(
            answer,
            text=answer.text[characters:],
            token_ids=answer.token_ids[tokens:],
            logprobs=None if answer.logprobs is None else answer.logprobs[tokens:],
        )

    def output(self) -> RequestOutput:
        """The answers as they are now."""
        best, scored, read = self.answers.best(), self.answers.prompt_logprobs, encoded_ids(self._prompt)
        return RequestOutput(
            request_id=self._asked.request_id,
            prompt=self._asked.prompt.text if read is None else self._prompt.text,
            prompt_token_ids=self._prompt.ids,
            encoder_prompt=self._prompt.encoder_text,
            encoder_prompt_token_ids=read,
            outputs=[answer.output(index, show_logprobs=self._show_logprobs) for index, answer in enumerate(best)],
            finished=self.answers.finished,
            prompt_logprobs=None if scored is None else [None if one is None else by_token(one) for one in scored],
            num_cached_tokens=self.answers.cached,
        )


def vector_output(request: RequestSpec, ended: Update) -> EmbeddingRequestOutput:
    """The output of a pooling request that has ended."""
    error, vector = None, list[float]()
    try:
        vector = list(read_vector(ended))
    except LsvError as raised:
        error = raised.record()
    return EmbeddingRequestOutput(
        request_id=request.request_id,
        prompt_token_ids=request.prompt.ids,
        outputs=EmbeddingOutput(vector),
        error=error,
    )
