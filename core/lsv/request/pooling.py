"""What a model does with hidden states instead of going on with a text: its task, and how a prompt is pooled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from lsv_base.errors import BadRequest

ModelTask = Literal["generate", "embed", "classify", "token_classify", "reward"]
"""What a model is for. One that generates gives vectors, too."""

PoolingTask = Literal["embed", "classify", "score", "token_embed", "token_classify", "reward"]
"""What a request asks for instead of an answer: a vector, the probabilities of labels, how well two texts go together,
and the same of every token.
"""

PoolingKind = Literal["last", "cls", "mean", "max", "sqrt", "weighted", "all"]
"""How the hidden states of a prompt's tokens become one: that of the last or the first token, their mean, their
maximum by feature, their sum over the root of their number, their mean weighted by place (1, 2, 3 …), or all of them.
"""

Activation = Literal["none", "sigmoid", "softmax"]

TASKS: Mapping[ModelTask, tuple[str, ...]] = {
    "generate": ("generate", "embed", "token_embed", "score"),
    "embed": ("embed", "token_embed", "score"),
    "classify": ("classify",),
    "token_classify": ("token_classify",),
    "reward": ("reward",),
}
"""What each kind of model can be asked for; a classifier with one label scores pairs of texts as well."""

VECTORS = ("embed", "token_embed")
"""What gives vectors of texts or tokens."""
_BY_TOKEN = ("token_embed", "token_classify", "reward")
_DESCRIBED: Mapping[str, str] = {
    "generate": "generate text",
    "embed": "embed texts",
    "token_embed": "embed tokens",
    "score": "score pairs of texts",
    "classify": "classify texts",
    "token_classify": "classify tokens",
    "reward": "reward answers",
}


class Pooler(msgspec.Struct, frozen=True, kw_only=True):
    """How a checkpoint pools, as its files and the operator say."""

    task: ModelTask = "generate"
    kind: PoolingKind = "last"
    normalize: bool = True
    """Whether vectors are scaled to unit length unless a request says otherwise."""
    activation: Activation = "none"
    """What makes probabilities of a classifier's scores."""
    labels: tuple[str, ...] = ()
    """The names of a classifier's labels."""
    embeds: bool = False
    """Whether a classifier also gives the vectors that its labels are computed from."""
    dense: tuple[str, ...] = ()
    """Folders of the checkpoint with linear layers that vectors go through, in order."""
    size: int | None = None
    """Of the model's whole vectors, where config.json says it."""
    dimensions: tuple[int, ...] | None = None
    """The sizes that vectors may be cut to; empty for any, None where the model was not trained for that."""
    prompts: Mapping[str, str] = {}
    """What is put before a text, by the name that requests ask for it by."""
    default_prompt: str = ""
    """What is put before a text where a request names nothing."""
    pieces: bool = False
    """Whether texts that are longer than the context are read in pieces unless a request says otherwise."""
    longest: int | None = None
    """Most tokens of a text that is read in pieces; None for what the server takes."""
    contrast: tuple[int, int] | None = None
    """The tokens for no and yes of a reranker that is a language model: its score is the difference of their logits."""
    step_token: int | None = None
    """Of a model that rewards steps: the token that ends one; only those tokens' rewards are given."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """All that the model can be asked for, what it is for first."""
        scores = ("score",) if self.task == "classify" and len(self.labels) == 1 else ()
        return (*TASKS[self.task], *scores, *(VECTORS if self.embeds else ()))

    @property
    def own(self) -> PoolingTask:
        """What a pooling request gets that does not say."""
        return "embed" if self.embeds or self.task == "generate" else self.task

    def check(self, task: str, model: str) -> None:
        """Raises ``BadRequest`` for a task that the model was not made for."""
        if task not in self.tasks:
            able = ", ".join(_DESCRIBED[one] for one in self.tasks)
            wanted = _DESCRIBED.get(task, f"do {task!r:.40}")
            raise BadRequest(f"the model {model} can't {wanted}: it can {able}", param="model")

    def kind_of(self, task: PoolingTask) -> PoolingKind:
        """How a request's hidden states are pooled."""
        return "all" if task in _BY_TOKEN else self.kind

    def check_dimensions(self, dimensions: int) -> None:
        """Raises ``BadRequest`` for a size that the model's vectors can't be cut to."""
        if self.dimensions is None:
            raise BadRequest(
                "dimensions is not available: this model was not trained for shorter vectors; the operator can "
                "override this with --hf-overrides '{\"is_matryoshka\": true}'",
                param="dimensions",
            )
        if self.dimensions and dimensions not in self.dimensions:
            known = ", ".join(map(str, self.dimensions))
            raise BadRequest(f"dimensions must be one of {known}, got {dimensions}", param="dimensions")
        if dimensions < 1 or (self.size is not None and dimensions > self.size):
            most = "" if self.size is None else f" and at most {self.size}"
            raise BadRequest(f"dimensions must be at least 1{most}, got {dimensions}", param="dimensions")

    def prompt(self, name: str | None) -> str:
        """What goes before a text. Raises ``BadRequest`` for an unknown name."""
        if name is None:
            return self.default_prompt
        if name not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise BadRequest(f"prompt_name {name!r:.100}: the model's prompts are {known}", param="prompt_name")
        return self.prompts[name]

    def rows(self, task: str, ids: Sequence[int], vector: Sequence[float]) -> list[float] | list[list[float]]:
        """What the engine gave, as users see it: the numbers of the prompt, or of each of its tokens ``ids``; of a
        model that rewards steps those of the tokens that end one.
        """
        if task not in _BY_TOKEN:
            return list(vector)
        width = len(vector) // len(ids)
        found = [list(vector[first : first + width]) for first in range(0, len(vector), width)]
        if self.step_token is None or task != "reward":
            return found
        return [row for row, token in zip(found, ids, strict=True) if token == self.step_token]
