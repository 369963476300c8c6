"""The bound model: a kernel for each of its ops, and the backend that serves its attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from torch import nn

from lsv.config import BoundOp, EngineConfig, Reason
from lsv.offers import AttentionOffer, KernelOffer
from lsv.plugins.catalog import Catalog
from lsv_base.errors import ConfigError
from lsv_runtime import ops
from lsv_runtime.attention import AttentionBackend, CacheSpec
from lsv_runtime.devices.device import Device
from lsv_runtime.drafts.making import weigh_drafter
from lsv_runtime.nn.dtypes import cache_dtype, model_dtype
from lsv_runtime.weights.fill import children_first
from lsv_runtime.worker.load.declared import Declared, keep_latents


@dataclass(frozen=True, slots=True)
class Bound:
    """A declared model whose ops are bound; no weight has been read."""

    declared: Declared
    backend: AttentionBackend
    ops: tuple[BoundOp, ...]
    """What was bound to each op, and why; the backend comes first."""
    reasons: tuple[Reason, ...] = ()
    """Why the backend is another one than was resolved."""
    beside: tuple[Reason, ...] = ()
    """Bytes of what will lie on the device beside the model."""

    def allocate(self, pages: int, config: EngineConfig, device: Device) -> Any:
        """A KV cache of the backend's; with a single page it is the null page, which is enough to run on."""
        declared, dtype = self.declared, cache_dtype(config.kv_dtype, model_dtype(config.dtype))
        return self.backend.allocate(
            CacheSpec(declared.groups, declared.layers, pages, config.block_size, dtype, declared.states), device
        )


def bind(declared: Declared, config: EngineConfig, catalog: Catalog) -> Bound:
    """Choose the attention backend and the kernels of a configuration.

    A backend that was not asked for by name and can't serve a layer gives way to the next. Raises ``ConfigError`` with
    the reasons where none of them can serve all layers.
    """
    if declared.states and config.layout == "padded":
        raise ConfigError(
            f"{config.architecture} has recurrent layers, and platform {config.platform} makes padded batches, whose "
            "rows have tokens that must not change a state",
            param="platform",
        )
    passed: list[str] = []
    for name in (config.attention, *config.attention_next):
        offer = catalog.find(AttentionOffer, name)
        backend = _try_backend(offer, declared, config, catalog, passed)
        if backend is not None:
            break
    else:
        raise ConfigError(f"{'; '.join(passed)}; choose another with --attention-backend", param="attention_backend")
    reasons = (Reason("attention", name, "; ".join(passed)),) if passed else ()
    why = next(
        (reason.why for reason in (*reasons, *config.reasons) if reason.name == "attention"), "asked for by name"
    )
    latents = keep_latents(declared, backend, config)
    told = backend.explain(declared.layers, model_dtype(config.dtype))
    why = "; ".join(part for part in (why, latents, told) if part)
    attention = BoundOp("attention_backend", offer.load, len(declared.layers), why, offer.row_invariant)
    bound = bind_ops(declared, catalog, config.platform, config.reference_ops, config)
    return Bound(declared, backend, (attention, *bound), reasons, weigh_drafter(config, catalog))


def _try_backend(
    offer: AttentionOffer, declared: Declared, config: EngineConfig, catalog: Catalog, passed: list[str]
) -> AttentionBackend | None:
    """The backend, or None and the reason in ``passed``: a library that does not load, a layer it can't serve."""
    try:
        backend: AttentionBackend = catalog.load(offer)()
    except ConfigError as cause:
        passed.append(f"attention backend {offer.name} can't be used: {cause.message}")
        return None
    for layer in declared.layers:
        why = backend.supports(layer)
        if why is not None:
            passed.append(
                f"attention backend {offer.name} can't serve layer {layer.index} of {config.architecture}: {why}"
            )
            return None
    return backend


def bind_ops(
    declared: Declared, catalog: Catalog, platform: str, reference: bool, config: EngineConfig | None = None
) -> tuple[BoundOp, ...]:
    """Choose kernels for all ops; ``reference`` leaves each to its plain-torch form.

    With a configuration, a kernel that is unwanted for it refuses every op.
    """
    modules = nn.ModuleList((declared.model, declared.sampling, *declared.shared))
    return _bind_below(modules, catalog, platform, reference, config)


def bind_filled(model: nn.Module, config: EngineConfig, catalog: Catalog) -> None:
    """Choose kernels for the ops of what runs beside a configuration's model and has its weights already."""
    _bind_below(model, catalog, config.platform, config.reference_ops, config)
    for module in children_first(model):
        if isinstance(module, ops.Bindable):
            module.pack()


def _bind_below(
    model: nn.Module, catalog: Catalog, platform: str, reference: bool, config: EngineConfig | None
) -> tuple[BoundOp, ...]:
    offers: Sequence[KernelOffer] = () if reference else tuple(catalog.offers(KernelOffer))
    if config is not None:
        offers = [_as_wanted(offer, config) for offer in offers]
    return ops.bind(model, offers, platform, catalog.load)


def name_strangers(bound: Sequence[BoundOp], catalog: Catalog) -> str:
    """A clause for messages about wrong results: what was bound that does not come with lsv; empty for nothing."""
    offers: list[KernelOffer | AttentionOffer] = [*catalog.offers(KernelOffer), *catalog.offers(AttentionOffer)]
    makers = {offer.load: catalog.provider(offer) for offer in offers if not catalog.is_own(offer)}
    found = [f"{op.op} by plugin {makers[op.implementation]}" for op in bound if op.implementation in makers]
    return f"; kernels that do not come with lsv: {', '.join(found)}" if found else ""


def _as_wanted(offer: KernelOffer, config: EngineConfig) -> KernelOffer:
    why = offer.unwanted(config) if offer.unwanted else None
    return offer if why is None else msgspec.structs.replace(offer, supports=lambda spec: why)
