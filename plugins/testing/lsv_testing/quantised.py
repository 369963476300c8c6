"""Conformance of a format as a whole: a checkpoint in it answers what the plain one of its weights' meaning answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lsv import LLM
from lsv.request.adapter import LoRARequest
from lsv.request.params import SamplingParams
from lsv_runtime.nn.linear import Column
from lsv_runtime.weights.place import Part
from lsv_runtime.weights.quantizer import Quantizer
from lsv_testing.adapters import linear_layers, write_adapter
from lsv_testing.tensors import TensorsSource, fill_module, place
from lsv_testing.tiny import tiny

Tensors = dict[str, torch.Tensor]
Pack = Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor] | None]
"""A layer's name and weight -> its tensors by suffix and the weight they mean, or None to leave it plain."""
_PROMPT = tuple(range(20, 50))


def write_quantised(
    family: str, folder: Path, quantization_config: Mapping[str, Any], pack: Pack, **shape: Any
) -> tuple[Path, Path]:
    """A tiny checkpoint of a family (see ``lsv_testing.tiny``) in a format, and the plain one of what it means.

    ``pack`` is asked for the projections and the output head.
    """
    from safetensors.torch import load_file, save_file

    plain, packed = tiny(family, folder / "plain", **shape), folder / "packed"
    meant = load_file(plain / "model.safetensors")
    tensors: Tensors = {}
    for name, tensor in meant.items():
        layer = name.removesuffix(".weight")
        found = pack(layer, tensor) if name.endswith(("_proj.weight", "lm_head.weight")) else None
        if found is None:
            tensors[name] = tensor
            continue
        parts, meant[name] = found
        tensors |= {f"{layer}.{suffix}": part.contiguous() for suffix, part in parts.items()}
    packed.mkdir()
    save_file(tensors, packed / "model.safetensors")
    save_file(meant, plain / "model.safetensors")
    config = json.loads((plain / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps({**config, "quantization_config": dict(quantization_config)}))
    return packed, plain


def fused_layer(quantizer: Quantizer, parts: Sequence[Tensors], widths: Sequence[int], inputs: int) -> Any:
    """A linear layer of parts so many outputs wide, each filled with its stored tensors by suffix."""
    w = place(quantizer=quantizer)
    column = Column(w, [Part(str(n), width, 0, width) for n, width in enumerate(widths)], inputs)
    return fill_module(column, w, parts_source(parts)).linear


def parts_source(parts: Sequence[Tensors]) -> TensorsSource:
    """The stored tensors of parts that are called ``0``, ``1`` …"""
    return TensorsSource({f"{n}.{suffix}": tensor for n, part in enumerate(parts) for suffix, tensor in part.items()})


def check_answers(family: str, folder: Path, quantization_config: Mapping[str, Any], pack: Pack, **shape: Any) -> None:
    """Write both checkpoints and compare their greedy tokens in float32, computed by the reference ops."""
    packed, plain = write_quantised(family, folder, quantization_config, pack, **shape)
    found, wanted = (answer(one, reference_ops=True) for one in (packed, plain))
    assert found == wanted, f"{family} answers {found} from the packed checkpoint, {wanted} from the plain one"


def check_adapted(family: str, folder: Path, quantization_config: Mapping[str, Any], pack: Pack) -> None:
    """The same of answers through an adapter, which changes them and goes by the lengths of weights, too (DoRA)."""
    packed, plain = write_quantised(family, folder, quantization_config, pack)
    write_adapter(folder / "adapter", plain, list(linear_layers(plain)), dora=True)
    adapter = LoRARequest("adapter", 1, str(folder / "adapter"))
    found, wanted = (answer(one, adapter, reference_ops=True) for one in (packed, plain))
    assert found == wanted, f"{family} answers {found} from the packed checkpoint, {wanted} from the plain one"
    assert found != answer(packed, reference_ops=True), "the adapter changes nothing"


def answer(folder: Path, adapter: LoRARequest | None = None, **options: Any) -> list[int]:
    """Greedy tokens in float32."""
    options |= {} if adapter is None else {"enable_lora": True}
    with LLM(str(folder), dtype="float32", skip_tokenizer_init=True, **options) as llm:
        params = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True)
        (output,) = llm.generate([{"prompt_token_ids": list(_PROMPT)}], params, lora_request=adapter)
    return list(output.outputs[0].token_ids)
