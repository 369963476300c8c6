"""What ``LLM`` makes of prompts instead of answering them: vectors, labels, scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from lsv.request.adapter import LoRARequest
from lsv.request.outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from lsv.request.params import PoolingParams
from lsv.request.pooling import Pooler, PoolingTask
from lsv.request.prompt import Prompt
from lsv.text.prompts import PromptInput, list_prompts
from lsv_base.errors import BadRequest
from lsv_offline.arguments import list_params, list_texts, refuse_adapter, refuse_prompt_adapter
from lsv_offline.llm_engine import LLMEngine, Output
from lsv_offline.progress import Progress

Prompts: TypeAlias = "PromptInput | Sequence[PromptInput]"


class PoolingMethods:
    """The methods of ``LLM`` for models that pool. All raise ``BadRequest`` for what the model can't do."""

    def _run(
        self,
        prompts: Any,
        params: Any,
        show_progress: Progress,
        priority: Sequence[int] | None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[Output]:
        raise NotImplementedError

    def _open_engine(self) -> LLMEngine:
        raise NotImplementedError

    def encode(
        self,
        prompts: Prompts | None = None,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        use_tqdm: Progress = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        prompt_adapter_request: object = None,
        pooling_task: PoolingTask | None = None,
    ) -> list[Any]:
        """What the model makes of each prompt, in their order; where a request failed, its output has an ``error``.

        A vector is an ``EmbeddingRequestOutput``, anything else a ``PoolingRequestOutput``. One set of parameters
        serves all prompts, a list gives each its own; ``pooling_task`` is the task of those that name none.
        """
        refuse_prompt_adapter(prompt_adapter_request)
        listed = list_prompts(prompts, prompt_token_ids)
        params = list_params(pooling_params, len(listed), PoolingParams, "pooling_params")
        if pooling_task is not None:
            params = [_with_task(one, pooling_task) for one in params]
        outputs = self._run(listed, params, use_tqdm, None, lora_request)
        found = [output for output in outputs if isinstance(output, EmbeddingRequestOutput)]
        return [self._shown(output, one.task or self._pooler.own) for output, one in zip(found, params, strict=True)]

    def embed(
        self,
        prompts: Prompts,
        *,
        use_tqdm: Progress = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        prompt_name: str | None = None,
        truncate_prompt_tokens: int | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """A vector for each prompt. ``prompt_name`` says which of the model's own prompts goes before texts."""
        before = self._pooler.prompt(prompt_name)
        listed = [before + one if isinstance(one, str) else one for one in list_prompts(prompts, None)]
        params = _truncated(pooling_params, truncate_prompt_tokens)
        return self.encode(
            listed, params, use_tqdm=use_tqdm, lora_request=lora_request, pooling_task="embed"
        )  # fmt: skip

    def classify(
        self,
        prompts: Prompts,
        *,
        use_tqdm: Progress = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[ClassificationRequestOutput]:
        """The probabilities of the labels of each prompt."""
        outputs = self.encode(
            prompts, pooling_params, use_tqdm=use_tqdm, lora_request=lora_request, pooling_task="classify"
        )
        return [
            ClassificationRequestOutput(
                request_id=output.request_id,
                prompt_token_ids=output.prompt_token_ids,
                outputs=ClassificationOutput(output.outputs.data),
                error=output.error,
            )
            for output in outputs
        ]

    def reward(
        self,
        prompts: Prompts,
        *,
        use_tqdm: Progress = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[PoolingRequestOutput]:
        """The rewards of each prompt's tokens, or of those that end a step."""
        return self.encode(prompts, pooling_params, use_tqdm=use_tqdm, lora_request=lora_request, pooling_task="reward")

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: Progress = True,
        pooling_params: PoolingParams | None = None,
        lora_request: object = None,
    ) -> list[ScoringRequestOutput]:
        """How well each pair of texts goes together; a single ``data_1`` is paired with every ``data_2``."""
        refuse_adapter(lora_request)
        firsts, seconds = list_texts(data_1, "data_1"), list_texts(data_2, "data_2")
        if not seconds or len(firsts) not in (1, len(seconds)):
            raise BadRequest(
                f"data_1 must hold one text, or as many as data_2: got {len(firsts)} and {len(seconds)}", param="data_1"
            )
        self._pooler.check("score", self._open_engine().client.config.served_names[0])
        params = pooling_params or PoolingParams()
        if self._pooler.task == "classify":
            return self._judge(firsts, seconds, params, truncate_prompt_tokens, use_tqdm)
        params = msgspec.structs.replace(params, task="embed", normalize=True)
        vectors = self.embed(
            [*firsts, *seconds], use_tqdm=use_tqdm, pooling_params=params, truncate_prompt_tokens=truncate_prompt_tokens
        )
        return [
            _scored(vectors[index if len(firsts) > 1 else 0], second)
            for index, second in enumerate(vectors[len(firsts) :])
        ]

    def _judge(
        self, firsts: list[str], seconds: list[str], params: PoolingParams, keep: int | None, use_tqdm: Progress
    ) -> list[ScoringRequestOutput]:
        """By a model that reads both texts."""
        client = self._open_engine().client
        keep = params.truncate_prompt_tokens if keep is None else keep
        keep = client.fit.max_model_len if keep == -1 else keep
        pairs = client.tokenizer.encode_pairs(firsts, seconds, keep, params.truncation_side)
        params = msgspec.structs.replace(params, truncate_prompt_tokens=None)  # truncated, considering both texts
        prompts = [Prompt(ids=tuple(ids), second=second) for ids, second in pairs]
        outputs = self._run(prompts, [_with_task(params, "score")] * len(prompts), use_tqdm, None)
        return [
            ScoringRequestOutput(
                request_id=output.request_id,
                prompt_token_ids=output.prompt_token_ids,
                outputs=ScoringOutput(output.outputs.embedding[0] if output.error is None else math.nan),
                error=output.error,
            )
            for output in outputs
            if isinstance(output, EmbeddingRequestOutput)
        ]

    @property
    def _pooler(self) -> Pooler:
        return self._open_engine().client.config.pooler

    def _shown(
        self, output: EmbeddingRequestOutput, task: PoolingTask
    ) -> EmbeddingRequestOutput | PoolingRequestOutput:
        if task == "embed":
            return output
        vector = output.outputs.embedding
        return PoolingRequestOutput(
            request_id=output.request_id,
            prompt_token_ids=output.prompt_token_ids,
            outputs=PoolingOutput(self._pooler.rows(task, output.prompt_token_ids, vector) if vector else []),
            error=output.error,
        )


def _with_task(params: PoolingParams, task: PoolingTask) -> PoolingParams:
    return params if params.task is not None else msgspec.structs.replace(params, task=task)


def _truncated(
    params: PoolingParams | Sequence[PoolingParams] | None, keep: int | None
) -> PoolingParams | Sequence[PoolingParams] | None:
    if keep is None:
        return params
    if isinstance(params, Sequence):
        return [msgspec.structs.replace(one, truncate_prompt_tokens=keep) for one in params]
    return msgspec.structs.replace(params or PoolingParams(), truncate_prompt_tokens=keep)


def _scored(first: EmbeddingRequestOutput, second: EmbeddingRequestOutput) -> ScoringRequestOutput:
    error = first.error or second.error
    products = zip(first.outputs.embedding, second.outputs.embedding, strict=error is None)
    return ScoringRequestOutput(
        request_id=second.request_id,
        prompt_token_ids=(*first.prompt_token_ids, *second.prompt_token_ids),
        outputs=ScoringOutput(math.nan if error else math.fsum(a * b for a, b in products)),
        error=error,
    )
