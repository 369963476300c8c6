"""What only the scheduler knows of a request that it could never serve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from lsv.kv.manager import KVManager
from lsv.request.media import Media
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv.scheduler.limits import Limits
from lsv_base.errors import BadRequest

_MAX_ID = (1 << 31) - 1


class Requirements:
    """What a request must meet to be queued, given the step's limits, the cache's size and the encoder's budget.

    ``longest`` is the most tokens a request can reach: ``max_model_len``, what all blocks hold and, without chunked
    prefill, what one step can take.
    """

    def __init__(self, limits: Limits, kv: KVManager) -> None:
        self.longest, self._why_longest = _longest(limits, kv)
        self._cross_len = kv.cross_len
        self._needs_item = any(group.kind == "cross" and not group.optional for group in kv.groups)
        self._encoder_tokens = limits.encoder_tokens
        self._chunked = limits.chunked_prefill
        self._mutual, self._step = limits.mutual, limits.max_num_batched_tokens

    def check(self, request: RequestSpec) -> None:
        """Raises ``BadRequest`` for a request that can never be served."""
        longest = self.longest if request.sampling is None else self.longest - 1
        for prompt in request.prompts:
            self._check_ids(prompt, longest)
            self._check_cross_item([media for media in prompt.media if media.cross])
            self._check_media(prompt.media)
            self._check_mutual(prompt)

    def _check_ids(self, prompt: Prompt, longest: int) -> None:
        ids = prompt.ids
        if not ids:
            raise BadRequest("the prompt is empty: it needs at least one token", param="prompt")
        if min(ids) < 0 or max(ids) > _MAX_ID:
            raise BadRequest(f"token ids of a prompt must be between 0 and {_MAX_ID}", param="prompt")
        if len(ids) > longest:
            raise BadRequest(
                f"the prompt has {len(ids)} tokens, but at most {longest} fit ({self._why_longest}): shorten it",
                param="prompt",
            )

    def _check_cross_item(self, items: Sequence[Media]) -> None:
        """A model with cross-attention needs exactly one item for it, or at most one; any other model none."""
        cross_len = self._cross_len
        least, most = int(self._needs_item), int(cross_len is not None)
        if not least <= len(items) <= most:
            wanted = "no" if not most else "exactly one" if least else "at most one"
            raise BadRequest(
                f"the model expects {wanted} media item next to its prompt, got {len(items)}", param="messages"
            )
        if cross_len is None or not items or items[0].count <= cross_len:
            return
        count = items[0].count
        if items[0].modality == "text":
            raise BadRequest(
                f"the text to encode has {count} tokens, and the model attends to at most {cross_len}: "
                "shorten it, or set truncate_prompt_tokens",
                param="prompt",
            )
        raise BadRequest(
            f"the item has {count} embeddings, and the model attends to at most {cross_len}", param="messages"
        )

    def _check_mutual(self, prompt: Prompt) -> None:
        """Tokens that see one another are computed in one step."""
        if self._mutual == "prompts" and len(prompt.ids) > self._step:
            self._refuse(f"the prompt has {len(prompt.ids)}")
        longest = max((item.count for item in prompt.media), default=0)
        if self._mutual == "items" and longest > self._step:
            self._refuse(f"an item has {longest}")

    def _refuse(self, what: str) -> NoReturn:
        raise BadRequest(
            f"{what} tokens, which see one another, and a step takes {self._step}: send less, or raise "
            "max_num_batched_tokens",
            param="messages",
        )

    def _check_media(self, media: Sequence[Media]) -> None:
        """Embeddings of one item, or of all where a prompt is computed in one step, must be kept at a time."""
        counts = [item.count for item in media]
        one_step = not self._chunked or self._mutual == "prompts"
        together = sum(counts) if one_step else max(counts, default=0)
        if together > self._encoder_tokens:
            raise BadRequest(
                f"the media of the prompt need {together} tokens at a time, and the encoder keeps "
                f"{self._encoder_tokens}: send smaller ones, or raise encoder_cache_tokens",
                param="messages",
            )


def _longest(limits: Limits, kv: KVManager) -> tuple[int, str]:
    """The most tokens of one request, and what bounds it."""
    bounds = [
        (limits.max_model_len, f"max_model_len={limits.max_model_len}"),
        (
            kv.longest(limits.tokens_in_flight),
            f"the KV cache has {kv.num_blocks} blocks of {kv.block_size} tokens",
        ),
    ]
    if not limits.chunked_prefill:
        tokens = limits.max_num_batched_tokens
        bounds.append((tokens, f"max_num_batched_tokens={tokens} without chunked prefill"))
    return min(bounds, key=lambda bound: bound[0])
