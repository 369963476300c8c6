"""The resolved configuration of one engine: frozen, complete, and never changed after it was resolved."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from lsv.capabilities import Layout, Padding

OptionValue = bool | int | float | str | None


class Reason(msgspec.Struct, frozen=True):
    """Why an option has its value, e.g. ``Reason("block_size", "128", "the attention backend allows only 128")``."""

    name: str
    value: str
    why: str


class Choices:
    """The reasons gathered while a configuration is resolved."""

    def __init__(self) -> None:
        self.reasons: list[Reason] = []

    def note(self, name: str, value: object, why: str) -> None:
        self.reasons.append(Reason(name, str(value), why))


class Topology(msgspec.Struct, frozen=True):
    """How many ranks along each axis."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an engine process needs, decided before anything is loaded.

    ``model`` and ``tokenizer`` are local directories. ``quantization`` None means unquantised; the layers that
    ``quantization_ignore`` names are left as they are (``lsv.weights.quantizer.is_skipped``). ``memory_share``
    None lets the platform's own rule decide, ``kv_bytes`` and ``num_blocks`` override it. ``mixed_batches``
    lets a step hold prompts and decoding rows together. ``options`` holds plugin settings by full name
    (``"cpu.threads"``), ``overrides`` replaces keys of the checkpoint's config.json. ``max_itl_ms`` bounds the steps of
    running requests while prompts enter; None does not. ``layout`` is that of steps, ``in_flight`` how many may be
    planned. ``emulate`` runs the platform's code without its device; ``enforce_eager`` keeps it from compiling steps.
    """

    model: str
    served_names: tuple[str, ...]
    tokenizer: str
    architecture: str
    model_offer: str
    platform: str
    emulate: bool = False
    device: int = 0
    attention: str
    quantization: str | None = None
    quantization_ignore: tuple[str, ...] = ()
    load_format: str = "auto"
    dtype: str
    kv_dtype: str = "auto"
    block_size: int
    max_model_len: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_queue: int = 4096
    prefix_caching: bool = True
    chunked_prefill: bool = True
    mixed_batches: bool = True
    max_itl_ms: float | None = None
    policy: str = "fcfs"
    executor: str = "inline"
    layout: Layout = "flat"
    in_flight: int = 1
    enforce_eager: bool = False
    memory_share: float | None = None
    kv_bytes: int | None = None
    num_blocks: int | None = None
    max_logprobs: int = 20
    encoder_cache_tokens: int = 16384
    seed: int = 0
    step_timeout: float = 300.0
    reference_ops: bool = False
    topology: Topology = Topology()
    plugins: tuple[str, ...] = ()
    options: Mapping[str, OptionValue] = {}
    overrides: Mapping[str, Any] = {}
    reasons: tuple[Reason, ...] = ()

    def fingerprint(self) -> str:
        """Sixteen hex digits that name this configuration; reasons do not count."""
        plain = msgspec.structs.replace(self, reasons=())
        return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()[:16]


class BoundOp(msgspec.Struct, frozen=True):
    """One line of ``lsv kernels``: which implementation serves an op, how often, and why."""

    op: str
    implementation: str
    count: int
    why: str
    row_invariant: bool = False


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine turned out to hold once its model is loaded.

    ``encoder_parts`` are the pieces in which the model encodes an item of media; 0 for a model that takes text only.
    ``cores`` are the processor's that the model's threads may run on.
    """

    num_blocks: int
    block_size: int
    kv_bytes: int
    weight_bytes: int
    max_model_len: int
    vocab_size: int
    groups: tuple[Mapping[str, Any], ...] = ()
    ops: tuple[BoundOp, ...] = ()
    padding: Padding | None = None
    encoder_parts: int = 0
    cores: frozenset[int] = frozenset()
    reasons: tuple[Reason, ...] = ()

    @property
    def kv_tokens(self) -> int:
        """Tokens the cache holds in requests of full length, beside the items that these attend to across, when every
        other group needs a block for each block of tokens.
        """
        sources: list[int] = [group["cross_len"] for group in self.groups if group.get("cross_len") is not None]
        growing = max(1, len(self.groups) - len(sources))
        own = growing * -(-self.max_model_len // self.block_size)
        items = sum(-(-source // self.block_size) for source in sources)
        return self.num_blocks * own // (own + items) // growing * self.block_size
