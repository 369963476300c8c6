"""A whole decoder layer in one native call."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from lsv.offers import OpSpec
from lsv_cpu import native
from lsv_cpu.adapters import NativeAdapters, describe_tokens
from lsv_cpu.attention import CpuAttention, HeadTurnRecord, LayerRecord
from lsv_cpu.communicator import SharedCommunicator
from lsv_cpu.experts import NativeExperts, why_not_experts
from lsv_cpu.kernels import RmsNorm, Rotate, selected_library
from lsv_cpu.linear import LinearRecord, PanelMLP, use_panels, why_not_gated
from lsv_runtime.adapters.slots import AdapterSlots
from lsv_runtime.nn.decoder import DecoderLayer
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.moe import MoE
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.step import Step
from lsv_runtime.ops import Bindable, Kernel


class NormRecord(ctypes.Structure):
    """``Norm`` of native/gemm/gemm.h."""

    _fields_ = [("weight", ctypes.c_void_p), ("eps", ctypes.c_float)]


_ADAPTED = ("adapters_qkv", "adapters_projection", "adapters_gate_up", "adapters_down")


class DecoderLayerRecord(ctypes.Structure):
    """``DecoderLayer`` of native/layer.cpp."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("dtype", "hidden")),
        *((name, NormRecord) for name in ("before_attention", "before_mlp")),
        *((name, LinearRecord) for name in ("qkv", "projection", "gate_up", "down")),
        ("attention", LayerRecord),
        ("turn", HeadTurnRecord),
        ("kind", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("experts", "ranks", "projection_bias", "down_bias")),
        *((name, ctypes.c_void_p) for name in _ADAPTED),
    ]


_GATED_MLP, _EXPERTS, _NOTHING = range(3)  # ``FeedForward`` of native/layer.cpp


class FusedLayer(Kernel):
    """``lsv_runtime.nn.decoder.DecoderLayer`` with a gated MLP or experts, over ``CpuAttention``.

    x [T, hidden] -> [T, hidden].

    The layer's parts get native kernels of their own, which share their packed weights with this one. They run instead
    of it with another attention backend, without a cache, where ranks exchange results by other means than shared
    memory, and in steps with adapters that are not added natively.
    """

    def __init__(self, module: DecoderLayer, spec: OpSpec) -> None:
        attn = module.attn
        self._module, self._library = module, selected_library()
        self._qkv, self._projection = use_panels(attn.qkv.linear), use_panels(attn.out.linear)
        self._mlp = _use_native(module.mlp)
        ranks = attn.out.communicator
        self._ranks = ranks if isinstance(ranks, SharedCommunicator) else None
        self._elsewhere = ranks is not self._ranks
        for norm in (module.before_attn, module.before_mlp, attn.q_norm, attn.k_norm):
            if norm is not None:
                norm.use(RmsNorm(norm, norm.spec()))
        if attn.rope.kernel is None:
            attn.rope.use(Rotate(attn.rope, attn.rope.spec()))
        self._record = DecoderLayerRecord()
        self._cache: object = None
        self._adapted = True
        """Whether all that adapters add is added natively, but for experts."""
        self._kind = _NOTHING
        self._routed = module.mlp.adapters if isinstance(module.mlp, MoE) else None

    def pack(self) -> None:
        """Called once the parts have packed their weights."""
        attn, record = self._module.attn, self._record
        record.dtype = native.DTYPES[attn.qkv.linear.layer.dtype]
        record.hidden = attn.qkv.linear.layer.inputs
        record.before_attention = _describe(self._module.before_attn)
        record.before_mlp = _describe(self._module.before_mlp)
        record.qkv, record.projection = self._qkv.record, self._projection.record
        if isinstance(self._mlp, PanelMLP):
            record.kind, record.gate_up, record.down = _GATED_MLP, self._mlp.gate_up.record, self._mlp.down.record
        else:
            record.kind = _EXPERTS if self._mlp.routes else _NOTHING
            record.experts = ctypes.addressof(self._mlp.record)
        record.turn = HeadTurnRecord(
            q_norm=None if attn.q_norm is None else attn.q_norm.weight.data_ptr(),
            k_norm=None if attn.k_norm is None else attn.k_norm.weight.data_ptr(),
            eps=0.0 if attn.q_norm is None else attn.q_norm.eps,
            table=attn.rope.table.data_ptr(),
            rotary=attn.rope.rope.rotary_dim,
        )
        if self._ranks is not None:
            record.ranks = self._ranks.address
            record.projection_bias = _address_of(attn.out.bias)
            if record.kind == _GATED_MLP:
                record.down_bias = _address_of(self._module.mlp.down.bias)
        self._kind = record.kind
        linears = [attn.qkv, attn.out]
        if isinstance(self._module.mlp, GatedMLP):
            linears += [self._module.mlp.gate_up, self._module.mlp.down]
        for name, linear in zip(_ADAPTED, linears, strict=False):
            kernel = linear.adapters.kernel if isinstance(linear.adapters, AdapterSlots) else None
            if isinstance(kernel, NativeAdapters):
                setattr(record, name, ctypes.addressof(kernel.record))
            elif linear.adapters is not None:
                self._adapted = False
        self._address = ctypes.addressof(record)
        self._cache = None  # loading weights also sets the scales of the attention layer's cache

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        backend = step.backend
        if not isinstance(backend, CpuAttention) or step.cache is None or self._elsewhere:
            return self._module.reference(x, step)
        tokens: Any = None
        if step.adapters is not None:
            if not self._adapted:
                return self._module.reference(x, step)
            tokens = ctypes.byref(describe_tokens(step.adapters))
        cache = backend.cache_record(step.cache)
        if cache is not self._cache:  # the record stands for the cache, which nobody is to keep for us
            self._record.attention = backend.layer_record(self._module.attn.layer, step.cache)
            self._cache = cache
        x = x.contiguous()
        out = torch.empty_like(x)
        self._record.kind = kind = _NOTHING if self._routed is not None and self._routed.adds else self._kind
        status = self._library.lsv_layer(
            self._address,
            ctypes.addressof(step.attention[self._module.attn.layer.group].record),
            ctypes.addressof(cache),
            tokens,
            step.positions.data_ptr(),
            x.shape[0],
            x.data_ptr(),
            out.data_ptr(),
        )
        if self._ranks is not None:
            self._ranks.check(status)
        elif status:
            raise native.refusal(status)
        if kind == _NOTHING:
            out += self._module.mlp(self._module.before_mlp(out))
        return out


def _use_native(mlp: Bindable) -> PanelMLP | NativeExperts:
    kernel: PanelMLP | NativeExperts
    if isinstance(mlp, MoE):
        kernel = NativeExperts(mlp, mlp.spec())
    else:
        assert isinstance(mlp, GatedMLP), "supports() lets only these through"
        kernel = PanelMLP(mlp, mlp.spec())
    mlp.use(kernel)
    return kernel


def _address_of(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _describe(norm: RMSNorm) -> NormRecord:
    return NormRecord(norm.weight.data_ptr(), norm.eps)


def why_not_fused(spec: OpSpec) -> str | None:
    """None, or why a decoder layer can't be a single call."""
    if "moe" in spec.flags:
        return why_not_experts(spec)
    if "gated_mlp" not in spec.flags:
        return "has an MLP that is not gated"
    return why_not_gated(spec)
