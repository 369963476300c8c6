"""A strict fake of FlashInfer: what the adapter calls is held against the package's own signatures."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from lsv_cuda.flashinfer.calls import FlashInfer
from lsv_runtime.attention.cache import Pages
from lsv_runtime.emulation.fakes import StrictFake
from lsv_runtime.emulation.placement.device import as_kernel
from lsv_runtime.emulation.vendors.attention import attend_row, read_pages
from lsv_runtime.emulation.vendors.checks import check_tensor, numbers, require
from lsv_runtime.emulation.vendors.signatures import Package, bind_function, read_package, signature

PACKAGE = read_package(Path(__file__).with_name("flashinfer.json"), Package)
HEAD_DIMS = (64, 128, 256)
_HALVES = (torch.float16, torch.bfloat16)
_CODES = (torch.float8_e4m3fn, torch.float8_e5m2)
_INT = [torch.int32]
_PLAN_NUMBERS = 4096


class FakeFlashInfer(FlashInfer, StrictFake):
    library = "FlashInfer"
    opaque: ClassVar[tuple[str, ...]] = ("run", "append")
    workspace_bytes = 1 << 16

    def __init__(self) -> None:
        StrictFake.__init__(self)
        decode, prefill = "BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"
        module = SimpleNamespace(
            append_paged_kv_cache=lambda *args, **kwargs: self._append(args, kwargs),
            **{name: self._maker(name) for name in (decode, prefill)},
        )
        FlashInfer.__init__(self, module)

    def _maker(self, name: str) -> Any:
        return lambda *args, **kwargs: FakeWrapper(self, name, bind_function(PACKAGE, name, args, kwargs))

    def _append(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = bind_function(PACKAGE, "append_paged_kv_cache", args, kwargs)
        self.record("append_paged_kv_cache", tuple(given["append_key"].shape))
        require(given.pop("kv_layout") == "NHD", "the fake has pages of tokens first")
        as_kernel(_append)(**given)


class FakeWrapper:
    """Either of the two kinds. As in the library a run reads the device alone: buffers of its own or, where steps are
    not captured, those of the last plan, and what plans copy from pinned memory, which is here the rows' lengths.
    """

    def __init__(self, fake: FakeFlashInfer, name: str, given: dict[str, Any]) -> None:
        fake.record(name)
        self._fake, self._name, self._decoding = fake, name, "Decode" in name
        workspace = given["float_workspace_buffer"]
        check_tensor("float_workspace_buffer", workspace, [torch.uint8], [None])
        require(given["kv_layout"] == "NHD", "the fake has pages of tokens first")
        require(given["backend"] == "auto" and given["jit_args"] is None, "the fake has the library's own choice")
        require(not self._decoding or given["use_tensor_cores"], "group sizes are few without tensor cores")
        self._device, self._graph = workspace.device, bool(given["use_cuda_graph"])
        end = "buffer" if self._decoding else "buf"
        names = {name: f"paged_kv_{name}_{end}" for name in ("indptr", "indices", "last_page_len")}
        self._buffers = {name: given[argument] for name, argument in names.items()}
        if not self._decoding:
            self._buffers["starts"] = given["qo_indptr_buf"]
        require(
            all((buffer is not None) == self._graph for buffer in self._buffers.values()),
            "buffers are given for graphs, and for these alone",
        )
        self._pinned = torch.zeros(_PLAN_NUMBERS, dtype=torch.int32)
        if not workspace.is_cpu:
            self._pinned = self._pinned.pin_memory()
        self._lengths = torch.zeros(_PLAN_NUMBERS, dtype=torch.int32, device=self._device)
        self._given: dict[str, Any] | None = None
        self._most_queries: int | None = None

    def plan(self, *args: Any, **kwargs: Any) -> None:
        given = bind_function(PACKAGE, f"{self._name}.plan", args, kwargs)
        self._fake.record(f"{self._name}.plan")
        if self._decoding:
            indptr, indices, last, dim = (given[x] for x in ("indptr", "indices", "last_page_len", "head_dim"))
            starts, causal = torch.arange(len(last) + 1, dtype=torch.int32), False
        else:
            names = ("paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len", "head_dim_qk")
            indptr, indices, last, dim = (given[x] for x in names)
            starts, causal = given["qo_indptr"], given["causal"]
        rows, page = len(last), given["page_size"]
        for name, x, size in (
            ("indptr", indptr, rows + 1),
            ("last_page_len", last, rows),
            ("starts", starts, rows + 1),
        ):
            check_tensor(name, x, _INT, [size])
            require(x.is_cpu, f"{name} is on a device, and would be waited for")
        check_tensor("indices", indices, _INT, [None])
        require(indices.device == self._device, f"indices are on {indices.device}")
        borders, lasts, queries = indptr.tolist(), last.tolist(), starts.tolist()
        require(len(indices) == borders[-1], f"{len(indices)} page indices, and indptr ends at {borders[-1]}")
        require(all(1 <= one <= page for one in lasts), f"last_page_len has {lasts}, pages have {page} tokens")
        lengths = [(stop - start - 1) * page + one for (start, stop), one in zip(pairwise(borders), lasts, strict=True)]
        require(
            given["seq_lens"] is None or given["seq_lens"].tolist() == lengths, "seq_lens are not those of the pages"
        )
        require(dim in HEAD_DIMS, f"Unsupported head_dim: {dim}")
        require(given["q_data_type"] in _HALVES, f"q_data_type is {given['q_data_type']}")
        require(given["kv_data_type"] in (given["q_data_type"], *_CODES), f"kv_data_type is {given['kv_data_type']}")
        require(given["num_qo_heads"] % given["num_kv_heads"] == 0, "query heads are no multiple of KV heads")
        _refuse_others(f"{self._name}.plan", given)
        found = {"indptr": indptr, "indices": indices, "last_page_len": last}
        if not self._decoding:
            found["starts"] = starts
            longest = max(stop - start for start, stop in pairwise(queries))
            require(
                given["max_token_per_sequence"] in (None, longest), "max_token_per_sequence is not the longest row's"
            )
        if self._graph:
            self._copy_in(found, rows, queries[-1])
        else:
            self._buffers = {name: x.to(self._device, non_blocking=True) for name, x in found.items()}
        self._pinned[:rows] = torch.tensor(lengths, dtype=torch.int32)
        self._lengths.copy_(self._pinned, non_blocking=True)
        plain = {name: value for name, value in given.items() if not isinstance(value, torch.Tensor)}
        self._given = {**plain, "causal": causal, "queries": queries[-1]}

    def _copy_in(self, found: dict[str, torch.Tensor], rows: int, queries: int) -> None:
        require(rows == len(self._buffers["last_page_len"]), "the batch size should be fixed in cudagraph mode")
        self._most_queries = self._most_queries or queries
        require(queries <= self._most_queries, "more queries than in the first plan in cuda graph mode")
        require(len(found["indices"]) <= len(self._buffers["indices"]), "indices exceed the allocated buffer")
        for name, x in found.items():
            self._buffers[name][: len(x)].copy_(x, non_blocking=True)

    def run(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        given = bind_function(PACKAGE, f"{self._name}.run", args, kwargs)
        self._fake.record(f"{self._name}.run", tuple(given["q"].shape))
        require(self._given is not None, "plan info is not initialized")
        assert self._given is not None
        plan, q, out, pages = self._given, given["q"], given["out"], given["paged_kv_cache"]
        known = ("q", "paged_kv_cache", "args", "out", "k_scale", "v_scale")
        _refuse_others(f"{self._name}.run", given, known)
        require(len(q) == plan["queries"], f"{len(q)} queries, and {plan['queries']} were planned")
        require(out is not None and out.dtype == q.dtype, "out is not of q's dtype")
        as_kernel(_run)(
            q, *pages, out, dict(self._buffers), self._lengths, plan, given["k_scale"] or 1.0, given["v_scale"] or 1.0
        )
        return out


_PLANNED = (
    "qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len", "indptr", "indices", "last_page_len",
    "num_qo_heads", "num_kv_heads", "head_dim", "head_dim_qk", "page_size", "causal", "sm_scale", "window_left",
    "logits_soft_cap", "q_data_type", "kv_data_type", "seq_lens", "max_token_per_sequence",
)  # fmt: skip


def _refuse_others(function: str, given: dict[str, Any], known: tuple[str, ...] = _PLANNED) -> None:
    parameters = signature(PACKAGE.functions[function]).parameters
    changed = [name for name, value in given.items() if name not in known and value != parameters[name].default]
    require(not changed and not given.get("args"), f"the fake of {function} knows no {', '.join(changed) or 'args'}")


def _run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    buffers: dict[str, torch.Tensor],
    lengths: torch.Tensor,
    plan: dict[str, Any],
    key_scale: float,
    value_scale: float,
) -> None:
    heads = (None, plan["page_size"], plan["num_kv_heads"], q.shape[2])
    check_tensor("q", q, [plan["q_data_type"]], [None, plan["num_qo_heads"], None], dense=False)
    require(q.stride(-1) == 1, "q is not dense in its last axis")
    for name, x in (("k_cache", k), ("v_cache", v)):
        check_tensor(name, x, [plan["kv_data_type"]], heads, dense=False)
    require(k.stride() == v.stride(), "k/v strides must be identical")
    check_tensor("out", out, [q.dtype], q.shape)
    borders, lasts = numbers(buffers["indptr"]), numbers(buffers["last_page_len"])
    starts = numbers(buffers["starts"]) if "starts" in buffers else list(range(len(lasts) + 1))
    for row, ((start, stop), (first, behind)) in enumerate(zip(pairwise(starts), pairwise(borders), strict=True)):
        length = (behind - first - 1) * k.shape[1] + lasts[row]
        require(int(lengths[row]) == length, f"row {row} was planned with {int(lengths[row])} tokens and has {length}")
        table = buffers["indices"][first:behind]
        keys, values = (read_pages(x, table, length).float() for x in (k, v))
        out[start:stop] = attend_row(
            q[start:stop],
            keys * key_scale,
            values * value_scale,
            plan["sm_scale"],
            causal=plan["causal"],
            window=(plan["window_left"], -1),
            soft_cap=plan["logits_soft_cap"] or 0.0,
        ).to(out.dtype)


def _append(
    append_key: torch.Tensor,
    append_value: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    paged_kv_cache: Pages,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
) -> None:
    tokens, rows = len(append_key), len(kv_last_page_len)
    check_tensor("batch_indices", batch_indices, _INT, [tokens])
    check_tensor("positions", positions, _INT, [tokens])
    check_tensor("kv_indices", kv_indices, _INT, [None])
    check_tensor("kv_indptr", kv_indptr, _INT, [rows + 1])
    check_tensor("kv_last_page_len", kv_last_page_len, _INT, [rows])
    keys, values = paged_kv_cache
    require(keys.stride() == values.stride(), "k/v strides must be identical")
    block, borders = keys.shape[1], numbers(kv_indptr)
    for x, pages in ((append_key, keys), (append_value, values)):
        check_tensor("append", x, [pages.dtype], [None, *pages.shape[2:]], dense=False)
        require(x.stride(-1) == 1, "what is appended is not dense in its last axis")
        for token, (row, position) in enumerate(zip(numbers(batch_indices), numbers(positions), strict=True)):
            at = borders[row] + position // block
            require(at < borders[row + 1], f"token {token} lies behind its row's last page")
            pages[int(kv_indices[at]), position % block] = x[token]
