"""The calls into FlashInfer. Signatures are those of 0.6.18: its ``prefill.py``, ``decode.py`` and ``page.py``."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch

from lsv_cuda.flashinfer.lengths import Lengths
from lsv_runtime.attention import AttentionLayer
from lsv_runtime.attention.cache import Pages

HEAD_DIMS = (64, 128, 256)
"""Head sizes that its kernels are made for."""

_LAYOUT = "NHD"
"""Pages [pages, block, kv_heads, dim]."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a wrapper is planned for beside the lengths of rows; layers of one form share it."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    causal: bool
    window: int | None
    soft_cap: float | None
    dtype: torch.dtype
    """Of queries and results."""
    kv_dtype: torch.dtype
    """Of the cache."""


class FlashInfer:
    """A wrapper is planned on the host, in host memory, once for each step; layers then run it.

    Queries are float16 or bfloat16, dense in their last axis; caches of the same dtype or of 8-bit floats.
    """

    workspace_bytes = 394 << 20
    """For partial results; what vLLM gives it. FlashInfer recommends at least 128 MiB."""

    def __init__(self, module: Any = None) -> None:
        self._module = importlib.import_module("flashinfer") if module is None else module

    def why_not(self, layer: AttentionLayer) -> str | None:
        """None, or what it has no kernels for."""
        if layer.head_dim not in HEAD_DIMS:
            return f"head size {layer.head_dim} is not one of {', '.join(map(str, HEAD_DIMS))}"
        if layer.sinks is not None:
            return "FlashInfer takes sinks and ignores them, but for kernels of one family of GPUs"
        if layer.alibi is not None:
            return "FlashInfer makes ALiBi slopes of its own"
        if layer.window is not None and not layer.causal:
            return "FlashInfer has windows to the left alone"
        return None

    def make_wrapper(self, workspace: torch.Tensor, lengths: Lengths, *, fixed: bool) -> Any:
        """For prompts, or for steps in which every row has one token. ``workspace`` is uint8, zeros when it is new.

        A ``fixed`` one keeps what a captured run reads in buffers of its own, as large as steps of this shape need.
        """
        decoding = lengths.decoding
        make = (
            self._module.BatchDecodeWithPagedKVCacheWrapper
            if decoding
            else self._module.BatchPrefillWithPagedKVCacheWrapper
        )
        more = {"use_tensor_cores": True} if decoding else {}
        if not fixed:
            return make(workspace, _LAYOUT, **more)
        kind = "buffer" if decoding else "buf"
        sizes = {
            f"paged_kv_indptr_{kind}": lengths.rows + 1,
            f"paged_kv_indices_{kind}": lengths.most_pages,
            f"paged_kv_last_page_len_{kind}": lengths.rows,
            **({} if decoding else {"qo_indptr_buf": lengths.rows + 1}),
        }
        buffers = {name: workspace.new_zeros(size, dtype=torch.int32) for name, size in sizes.items()}
        return make(workspace, _LAYOUT, use_cuda_graph=True, **more, **buffers)

    def plan(self, wrapper: Any, form: Form, lengths: Lengths) -> None:
        """Ends with copies from pinned memory of the wrapper's, which is not to be planned again before they are done.

        Lengths are on the host: what lies on the device would be waited for.
        """
        pages = (lengths.borders, lengths.pages[: lengths.count], lengths.last)
        shared: dict[str, Any] = {
            "window_left": -1 if form.window is None else form.window - 1,
            "logits_soft_cap": form.soft_cap,
            "sm_scale": form.scale,
            "q_data_type": form.dtype,
            "kv_data_type": form.kv_dtype,
            "seq_lens": lengths.context,
        }
        sizes = (form.heads, form.kv_heads, form.head_dim, lengths.block_size)
        if lengths.decoding:
            wrapper.plan(*pages, *sizes, **shared)
        else:
            longest = lengths.longest_query
            wrapper.plan(lengths.starts, *pages, *sizes, causal=form.causal, max_token_per_sequence=longest, **shared)

    def run(
        self, wrapper: Any, q: torch.Tensor, pages: Pages, out: torch.Tensor, key_scale: float, value_scale: float
    ) -> None:
        """What q [T, heads, dim] attends to -> out; K and V are in units of the scales."""
        scales = {"k_scale": key_scale, "v_scale": value_scale}
        wrapper.run(q, pages, out=out, **{name: scale for name, scale in scales.items() if scale != 1.0})

    def append(self, k: torch.Tensor, v: torch.Tensor, pages: Pages, lengths: Lengths) -> None:
        """Writes k and v [T, kv_heads, dim] of the pages' dtype to their places; all lengths are on the device."""
        rows, positions = lengths.token_rows, lengths.positions
        tables = (lengths.pages, lengths.device_borders, lengths.device_last)
        self._module.append_paged_kv_cache(k, v, rows, positions, pages, *tables, kv_layout=_LAYOUT)
