"""The seam to architectures: what a model and its encoder are, and how core runs their parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from lsv.request.media import Mutual
from lsv_runtime.attention import AttentionLayer
from lsv_runtime.attention.states import StateLayer
from lsv_runtime.nn.attention import Attention, CrossAttention
from lsv_runtime.nn.embed import Embed
from lsv_runtime.nn.latent import LatentAttention
from lsv_runtime.nn.recurrent.states import StateCache
from lsv_runtime.nn.step import Embeddings, Step, Taps, TokenAdapters
from lsv_runtime.ops import CarryingKernel
from lsv_runtime.weights.naming import Prefixes, rename
from lsv_runtime.weights.place import Weights
from lsv_runtime.weights.stacks import Stack


class Encoder(nn.Module):
    """A tower over one item of media (an image, a sound, a video), cut into ``parts`` of like cost.

    Inputs are those of one item, by the names its processor gave them. Between two parts a decoding step may run.
    """

    parts: int
    """How many calls of ``advance`` an item takes."""
    width: int = 0
    """The numbers of each of its rows; 0 is as many as the model norms last."""
    deeper: int = 0
    """Behind how many of the first layers it adds something to its tokens (DeepStack, Meng et al. 2024). Its rows hold
    that side by side: the embedding, what is added behind the first layer, behind the second, and so on."""
    dispensable: frozenset[str] = frozenset()
    """Tensors that a checkpoint may hold in forms that do not fit: the model is then declared with a reason not to read
    them (``Declaration.towerless``)."""

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> Any:
        """The state that the first part works on; ``inputs`` are on the device.

        Raises ``BadRequest``, as ``advance`` may, for an item that the model can't read; its requests get this error.
        """
        raise NotImplementedError

    def advance(self, state: Any, part: int) -> Any:
        """The state after ``part``, counted from 0; after the last one the rows [count, width]."""
        raise NotImplementedError

    def largest(self, most: int) -> Mapping[str, torch.Tensor] | None:
        """Inputs, on the CPU, of the item that takes most memory among those of at most ``most`` embeddings.

        Their content does not matter. Asked for only where a device measures memory; None goes unmeasured.
        """
        return None


class ElsewhereEncoder(Encoder):
    """Stands in the model of a later stage for the tower of the first: as many parts, and nothing to compute."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.parts, self.width = encoder.parts, encoder.width


class ActiveAdapters:
    """The adapters of the step that runs, which a model's layers share: most of them are not given the step."""

    def __init__(self) -> None:
        self.tokens: TokenAdapters | None = None


class Model(nn.Module):
    """What core needs of an architecture. ``ModelOffer.load`` names a subclass, see ``Architecture``."""

    prefixes: ClassVar[Prefixes] = ()
    """What checkpoints write instead of the beginnings of this model's tensor names."""
    axes: ClassVar[int] = 1
    """The axes of a token's position: 3 with M-RoPE (time, height, width); 2 where tokens attend to a media item from
    its place in the prompt on: the second says how far behind that they are, negative before it and without an item."""
    staged: bool = False
    """Whether a layer needs nothing of what came before but its input, so that ranks can have layers of their own."""
    mutual: ClassVar[Mutual] = ""
    """Whose tokens see one another (``Step.items``), so that no step cuts one."""
    pairs: ClassVar[bool] = False
    """Whether it tells the tokens of a row's second text from those of its first (``Step.types``)."""
    ignores: tuple[str, ...] = ()
    """Regular expressions of tensors that checkpoints may hold and the model does not need."""
    stacks: tuple[Stack, ...] = ()
    """Tensors that checkpoints hold instead of those of single experts, by the names after ``rename``."""
    outside: frozenset[str] | None = None
    """Tensors that the model declares by the checkpoint's own names, where all others are those of a language model
    that the checkpoint holds below a prefix of its own; None where that is not so."""
    vocab_size: int
    """The width of the logits."""
    embed: Callable[[torch.Tensor, Step], torch.Tensor]
    """ids int64 [T] -> [T, hidden]."""
    layers: nn.ModuleList
    """Run in order: (x [T, hidden], step) -> [T, hidden]."""
    norm: nn.Module
    """Takes the rows of the last layer's output that the head needs: [R, hidden] -> [R, hidden]."""
    head: Callable[[torch.Tensor, Step], torch.Tensor]
    """Normed hidden states [R, hidden] -> logits [R, vocab_size]."""
    encoder: Encoder | None
    """The tower of a model that takes media; None for text alone."""
    adapters: ActiveAdapters | None
    """What the model's adapters go by; None where it has none."""
    ends: bool = True
    """Whether it has the last layers and what follows them, the norm and the head."""
    stream: tuple[int, torch.dtype] | None = None
    """Numbers a token, and their dtype, of what layers give to each other; None for as many as the norm takes, in the
    model's own dtype."""
    receives: tuple[int, torch.dtype] | None = None
    """Numbers a token, and their dtype, of what layers of other ranks hand on to its first; None where it embeds."""
    scorer: nn.Module | None
    """What stands behind the states of a model that classifies: [R, hidden], pooled or one a token -> [R, labels]."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = None
        self.scorer = None
        self.adapters = None

    def rename(self, name: str) -> str:
        """A checkpoint's name of a tensor -> the name under which the model declared it."""
        return rename(name, self.prefixes)

    def place_media(self, x: torch.Tensor, media: Embeddings, step: Step) -> torch.Tensor:
        """What ``embed`` made of the tokens [T, hidden], with an encoder's embeddings in the places of some."""
        return x.index_copy(0, media.places, media.rows.to(x.dtype))

    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        """The attention layers of this rank, by index."""
        raise NotImplementedError

    def place_layers(self, layers: Sequence[AttentionLayer]) -> None:
        """Replace the attention layers by the same ones with their places in the KV cache."""
        raise NotImplementedError

    def state_layers(self) -> tuple[StateLayer, ...]:
        """The recurrent layers of this rank, by index; attention layers and they share one numbering."""
        return ()

    def place_states(self, layers: Sequence[StateLayer]) -> None:
        """Replace the recurrent layers by the same ones with their places in the KV cache."""


class Architecture(Protocol):
    """A class of models, as ``ModelOffer.load`` names it."""

    @property
    def prefixes(self) -> Prefixes: ...

    def __call__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> Model:
        """A model whose weights are declared at ``w``. ``config`` is config.json, ``max_len`` the longest input.

        Raises ``CheckpointError`` for a config.json that it can't follow.
        """
        ...


class AttentionModel(Model):
    """A model made of the attention modules of ``lsv_runtime.nn.attention`` and of recurrent ones
    (``lsv_runtime.nn.recurrent``).
    """

    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        return tuple(attention.layer for attention in self._attentions())

    def place_layers(self, layers: Sequence[AttentionLayer]) -> None:
        for attention, layer in zip(self._attentions(), layers, strict=True):
            attention.layer = layer

    def state_layers(self) -> tuple[StateLayer, ...]:
        return tuple(cache.layer for cache in self._state_caches())

    def place_states(self, layers: Sequence[StateLayer]) -> None:
        for cache, layer in zip(self._state_caches(), layers, strict=True):
            cache.layer = layer

    def _state_caches(self) -> list[StateCache]:
        found = [module for module in self.modules() if isinstance(module, StateCache)]
        return sorted(found, key=lambda cache: cache.layer.index)

    def _attentions(self) -> list[Attention | CrossAttention | LatentAttention]:
        kinds = Attention | CrossAttention | LatentAttention
        found = [module for module in self.modules() if isinstance(module, kinds)]
        return sorted(found, key=lambda attention: attention.layer.index)


@torch.inference_mode()
def run(model: Model, step: Step) -> torch.Tensor:
    """All layers over the step's tokens; the normed hidden states [R', hidden] of ``step.logits_rows``.

    Of a model that lacks the last layers, the states of all tokens [T, hidden].
    """
    if model.adapters is not None:
        model.adapters.tokens = step.adapters
    x = model.embed(step.ids, step) if step.received is None else step.received
    if step.media is not None:
        x = model.place_media(x, step.media, step)
    x, change = _run_layers(model.layers, x, step) if step.taps is None else _run_tapped(model, x, step, step.taps)
    if not model.ends:
        return x if change is None else x + change
    if step.sound is not None:
        _check_states(x, change, step.sound)
    rows = x.index_select(0, step.logits_rows)
    if change is not None:
        rows = rows + change.index_select(0, step.logits_rows)
    return model.norm(rows)  # type: ignore[no-any-return]


def _check_states(x: torch.Tensor, change: torch.Tensor | None, sound: torch.Tensor) -> None:
    """Write to ``sound`` bool [T] which tokens' states [T, hidden], and what is still added to them, are finite.

    A token attends to itself, so NaN in its K or V is in its state, too, however far later tokens see. A sum in float32
    takes one pass and overflows only where the squares of a norm have long done so.
    """
    total = x.flatten(1).sum(dim=-1, dtype=torch.float32)
    if change is not None:
        total += change.flatten(1).sum(dim=-1, dtype=torch.float32)
    sound.copy_(total.isfinite())


def _run_tapped(model: Model, x: torch.Tensor, step: Step, taps: Taps) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As ``_run_layers`` of all layers; keeps the states that are read between them."""
    begin, change = 0, None
    for place, end in enumerate(taps.layers):
        x, change = _run_layers(model.layers[begin:end], x, step, change, first=begin)
        begin, states = end, x if change is None else x + change
        taps.keep(place, model.norm(states) if end == len(model.layers) else states)
    return _run_layers(model.layers[begin:], x, step, change, first=begin)


def _run_layers(
    layers: nn.ModuleList, x: torch.Tensor, step: Step, change: torch.Tensor | None = None, first: int = 0
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The output of the last layer, and what is still to be added to it; ``change`` is that of the layers before, of
    which there are ``first``.
    """
    deeper = 0 if step.media is None else len(step.media.deeper)
    for number, layer in enumerate(layers, first):
        kernel = getattr(layer, "kernel", None)
        if isinstance(kernel, CarryingKernel):
            x, change = kernel.carry(x, change, step)
        else:
            x, change = layer(x if change is None else x + change, step), None
        if number < deeper:
            assert step.media is not None, "only media go deeper"
            x = step.media.deepen(x, number)
    return x, change


@torch.inference_mode()
def run_to_logits(model: Model, step: Step, out: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``run``, and the logits [R', vocab_size] of these states, in ``out`` if that is given."""
    hidden = run(model, step)
    logits = model.head(hidden, step)
    return hidden, logits if out is None else out.copy_(logits)


@torch.inference_mode()
def write_item(model: Model, item: torch.Tensor, step: Step) -> None:
    """Cache what all cross layers keep of an item: its embeddings [count, hidden] are the tokens of ``step``."""
    for module in model.modules():
        if isinstance(module, CrossAttention):
            module.write(item, step)


def handed_on(model: Model) -> int:
    """The numbers a token that a model's layers hand on: as many as the norm behind them takes."""
    weight = next(model.norm.parameters(), None)
    if weight is not None:
        return weight.shape[-1]
    return next(module.size for module in model.modules() if isinstance(module, Embed))
