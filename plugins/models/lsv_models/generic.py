"""Any decoder-only architecture of transformers, run with its own code over lsv's paged attention and linear layers.

The transformers model is built on meta, its linear layers are replaced by lsv's (so that kernels and weight formats
serve them too), and its attention is sent to the step's backend through transformers' own attention interface.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions as ModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lsv.attention import AttentionLayer
from lsv.errors import CheckpointError, ConfigError
from lsv.nn.keys import MOST_LAYERS
from lsv.nn.model import Model
from lsv.nn.step import Step
from lsv.ops import dtype_name
from lsv.weights.place import Part, Piece, Weights
from lsv_models.frozen_rope import freeze_ropes, make_buffers

_ATTENTION = "lsv_paged"
_BODY = "_lsv_body"
_LAYER_TYPES = {"full_attention", "sliding_attention", "attention"}
_KNOWN_TENSORS = {"position_ids", "cache_position", "s_aux"}


class Refused(Exception):
    """An architecture that can't run through the adapter, and why."""


class Attend(Protocol):
    """Serves one attention call of a transformers module."""

    def __call__(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        call: Mapping[str, Any],
    ) -> torch.Tensor:
        """query [1, heads, T, dim], key and value [1, kv_heads, T, dim] -> [1, T, heads, dim]."""
        ...


class Probe:
    """Serves one pass on meta and records what every attention layer asks for, by the identity of its module."""

    def __init__(self) -> None:
        self.layers: dict[int, AttentionLayer] = {}

    def __call__(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        call: Mapping[str, Any],
    ) -> torch.Tensor:
        _, heads, tokens, dim = query.shape
        if value.shape != key.shape or key.shape[2:] != query.shape[2:]:
            raise Refused("its queries, keys and values differ in size")
        if id(module) in self.layers:
            raise Refused("a layer attends more than once")
        if call.get("is_causal") is False or getattr(module, "is_causal", True) is False:
            raise Refused("its attention looks ahead")
        strange = {name for name, given in call.items() if isinstance(given, torch.Tensor)} - _KNOWN_TENSORS
        if strange:
            raise Refused(f"its attention takes {', '.join(sorted(strange))}")
        scale = call.get("scaling")
        self.layers[id(module)] = AttentionLayer(
            len(self.layers), heads, key.shape[1], dim, dim**-0.5 if scale is None else float(scale),
            window=call.get("sliding_window"), soft_cap=call.get("softcap"), sinks=call.get("s_aux"),
        )  # fmt: skip
        return query.new_empty(1, tokens, heads, dim)


def _attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *unused: Any,
    **call: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls. The module's model knows what serves it."""
    if attention_mask is not None:
        raise Refused("it brings an attention mask of its own")
    body: Body = module.__dict__[_BODY]
    assert body.attend is not None, "attention is called from within Body.run only"
    return body.attend(module, query, key, value, call), None


ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _attend)


class Body(nn.Module):
    """The transformers model without its head, as one layer: x [T, hidden] -> normed [T, hidden].

    Many architectures do not pass keyword arguments down to their attention, so each module below can find this one
    (set past ``__setattr__``, which would make it a child), and ``attend`` is set while a pass runs. A model runs one
    pass at a time.
    """

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.layers: dict[int, AttentionLayer] = {}
        self.attend: Attend | None = None
        for module in base.modules():
            module.__dict__[_BODY] = self

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        def attend(
            module: nn.Module,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            call: Mapping[str, Any],
        ) -> torch.Tensor:
            layer = self.layers[id(module)]
            if call.get("s_aux") is not None:
                layer = dataclasses.replace(layer, sinks=call["s_aux"])
            q, k, v = (heads[0].transpose(0, 1) for heads in (query, key, value))
            return step.backend.attend(q, k, v, layer, step.cache, step.attention[layer.group])[None]

        return self.run(x, step.positions, attend)

    def run(self, x: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """x [T, hidden], positions [1, T]."""
        self.attend = attend
        try:
            out = self.base(inputs_embeds=x[None], position_ids=positions, use_cache=False)
        finally:
            self.attend = None
        return out.last_hidden_state[0]  # type: ignore[no-any-return]


class PassThrough(nn.Module):
    """Takes the body's place inside the transformers model, so that the model's own forward is just the head."""

    def forward(self, *args: Any, inputs_embeds: torch.Tensor, **kwargs: Any) -> ModelOutput:
        return ModelOutput(last_hidden_state=inputs_embeds)

    @property
    def decoder(self) -> PassThrough:
        """Some heads (OPT's) call the body's inner decoder."""
        return self


class Generic(Model):
    """A ``Model`` around a transformers model. Raises ``CheckpointError`` for architectures it can't run."""

    ignores: tuple[str, ...] = (
        r"rotary_emb\.inv_freq$",
        r"\.attn\.(masked_)?bias$",
        r"\.attention\.(masked_)?bias$",
    )

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        super().__init__()
        architecture = str((config.get("architectures") or ["?"])[0])
        if w.shard.size > 1:
            raise ConfigError(
                f"{architecture} runs through the transformers adapter, which knows one rank only: "
                "use tensor_parallel_size 1",
                param="tensor_parallel_size",
            )
        try:
            self._build(w, config, max_len, architecture)
        except Exception as cause:  # transformers' own classes raise whatever they meet
            reason = str(cause) if isinstance(cause, Refused) else f"building it failed: {cause!r}"
            raise CheckpointError(f"{architecture} can't run through the transformers adapter: {reason}") from cause

    def _build(self, w: Weights, config: Mapping[str, Any], max_len: int, architecture: str) -> None:
        lm = build_on_meta(config, w.dtype, architecture)
        freeze_ropes(lm)
        self._prefix, self._known = lm.base_model_prefix, set(lm.state_dict())
        self._renamings = [rule for rule in get_model_conversion_mapping(lm) if type(rule) is WeightRenaming]
        declare_weights(w, lm)
        self.layers = nn.ModuleList([Body(lm.base_model)])
        self.norm = nn.Identity()
        self.tokens = lm.get_input_embeddings()
        setattr(lm, lm.base_model_prefix, PassThrough())
        self.lm = lm
        self._probe(lm.config)
        make_buffers(lm, self.body.base, w.device, max_len)

    @property
    def body(self) -> Body:
        body = self.layers[0]
        assert isinstance(body, Body)
        return body

    @torch.no_grad()
    def _probe(self, config: PreTrainedConfig) -> None:
        """Run one token on meta to learn the attention layers and the width of the logits."""
        probe = Probe()
        ids = torch.zeros(1, dtype=torch.int64, device="meta")
        self.eval()
        hidden = self.body.run(self.tokens(ids), ids[None], probe)
        if len(probe.layers) != config.get_text_config().num_hidden_layers:
            raise Refused(f"only {len(probe.layers)} of its layers attend through transformers' attention interface")
        self.body.layers = probe.layers
        self.vocab_size = int(self._logits(hidden).shape[-1])

    def embed(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        return self.tokens(ids)  # type: ignore[no-any-return]

    def head(self, hidden: torch.Tensor, step: Step) -> torch.Tensor:
        return self._logits(hidden)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm(inputs_embeds=hidden[None], use_cache=False).logits[0]  # type: ignore[no-any-return]

    def rename(self, name: str) -> str:
        """Renames what transformers has renamed since, and names of a bare model, which lack its prefix."""
        if name in self._known:
            return name
        for rule in self._renamings:
            name, _ = rule.rename_source_key(name)
        longer = f"{self._prefix}.{name}"
        return longer if name not in self._known and longer in self._known else name

    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        return tuple(self.body.layers.values())

    def place_layers(self, layers: Sequence[AttentionLayer]) -> None:
        self.body.layers = dict(zip(self.body.layers, layers, strict=True))


def build_on_meta(config: Mapping[str, Any], dtype: torch.dtype, architecture: str) -> PreTrainedModel:
    """The transformers model of a config.json, without weights. Raises ``Refused``."""
    kind = config.get("model_type")
    if kind not in CONFIG_MAPPING:
        raise Refused(
            f"transformers knows no model_type {kind!r}, and a model's own code is never run; where it is built like "
            'one that lsv models lists, name that with --hf-overrides \'{"architectures": ["LlamaForCausalLM"]}\''
        )
    if config.get("is_encoder_decoder"):
        raise Refused("it has an encoder")
    if any(config.get(key) for key in ("vision_config", "audio_config")):
        raise Refused("it takes more than text")
    parsed = CONFIG_MAPPING[kind].from_dict({**config, "dtype": dtype_name(dtype)})
    layers = getattr(parsed.get_text_config(), "num_hidden_layers", None)
    if not isinstance(layers, int) or not 1 <= layers <= MOST_LAYERS:
        raise Refused(f"num_hidden_layers is {layers!r:.100}, which is no number of layers")
    strange = set(getattr(parsed, "layer_types", None) or ()) - _LAYER_TYPES
    if strange:
        raise Refused(f"it has layers of type {', '.join(sorted(strange))}")
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(parsed, dtype=dtype, attn_implementation=_ATTENTION)
    except KeyError as cause:
        if cause.args == (_ATTENTION,):
            raise Refused("its attention does not go through transformers' attention interface") from cause
        raise
    if type(model).__name__ != architecture:
        raise Refused(f"for text generation transformers has {type(model).__name__} instead")
    if getattr(model, "_is_stateful", False):
        raise Refused("it keeps a state that is not a KV cache")
    return model


def declare_weights(w: Weights, lm: PreTrainedModel) -> None:
    """Declare all parameters under transformers' names; plain linear layers are replaced by lsv's."""
    shared = _shared_parameters(lm)
    for path, module in list(lm.named_modules()):
        if type(module) is nn.Linear and id(module.weight) not in shared:
            _replace_linear(w, lm, path, module)
        for key in module._buffers.keys() - module._non_persistent_buffers_set:
            _as_parameter(module, key)
    declared = {id(slot.parameter) for slot in w.declaration.slots}
    for name, parameter in lm.named_parameters():
        if parameter.ndim > 2:
            raise Refused(f"it stacks experts or convolutions ({name}), which only a native architecture serves")
        if id(parameter) not in declared:
            whole = tuple(slice(0, size) for size in parameter.shape)
            parameter.requires_grad_(False)
            w.adopt(parameter, (Piece(name, tuple(parameter.shape), whole, whole),))


def _as_parameter(module: nn.Module, key: str) -> None:
    """Turn a buffer that checkpoints hold into a parameter, so that it is filled like a weight."""
    buffer = module._buffers.pop(key)
    if buffer is not None:
        setattr(module, key, nn.Parameter(buffer, requires_grad=False))


def _replace_linear(w: Weights, lm: PreTrainedModel, path: str, module: nn.Linear) -> None:
    parent, _, name = path.rpartition(".")
    place = Weights(w.declaration, parent)
    role = "head" if module is lm.get_output_embeddings() else "column"
    part = Part(name, module.out_features, 0, module.out_features)
    linear = place.linear(role, [part], module.in_features, bias=module.bias is not None)
    setattr(lm.get_submodule(parent), name, linear)


def _shared_parameters(lm: PreTrainedModel) -> set[int]:
    """The identities of parameters that more than one module holds."""
    seen: set[int] = set()
    shared: set[int] = set()
    for module in lm.modules():
        for parameter in module.parameters(recurse=False):
            (shared if id(parameter) in seen else seen).add(id(parameter))
    return shared
