"""Low-rank adapters by token against plain torch."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
import pytest
import torch
import triton

from lsv import LLM, LoRARequest, SamplingParams
from lsv_runtime.adapters.slots import AdapterSlots
from lsv_runtime.nn.model import ActiveAdapters
from lsv_runtime.weights.quantizer import LinearLayer
from lsv_runtime.worker.transfer import send_adapters
from lsv_testing.adapters import linear_layers, write_adapter
from lsv_testing.tiny import tiny

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}
SHAPES = [(6, 40, 8, 70), (5, 300, 16, 33), (3, 17, 5, 130)]  # tokens, inputs, rank, outputs


@pytest.mark.parametrize(("dtype", "shape"), [*zip(TOLERANCE, SHAPES, strict=True)], ids=str)
def test_each_token_has_its_adapter(dtype: torch.dtype, shape: tuple[int, int, int, int], device: torch.device) -> None:
    from lsv_triton.layers.lora import expand, expand_reference, shrink, shrink_reference

    tokens, inputs, rank, outputs = shape
    x = torch.randn(tokens, inputs).to(device, dtype)
    a, b = torch.randn(3, rank, inputs).to(device, dtype), torch.randn(3, outputs, rank).to(device, dtype)
    slots = torch.tensor([2, -1, 0, 2, 1, -1][:tokens], dtype=torch.int32, device=device)
    y = torch.randn(tokens, outputs + 7).to(device, dtype)
    part = slice(3, 3 + outputs)

    small = shrink(x, slots, a)
    exact = shrink_reference(x, slots, a)
    assert (small - exact).abs().max() <= 2e-6 * exact.abs().max()
    found, wanted = y.clone(), y.clone()
    expand(found[:, part], small, slots, b)
    expand_reference(wanted[:, part], small, slots, b)
    assert (found - wanted).abs().max() <= TOLERANCE[dtype] * wanted.abs().max()
    assert torch.equal(found[:, :3], y[:, :3])
    assert torch.equal(found[1], y[1])  # no adapter, no change
    for token in range(tokens):
        one = slice(token, token + 1)
        alone = y[one].clone()
        assert torch.equal(shrink(x[one], slots[one], a)[0], small[token])
        expand(alone[:, part], small[one], slots[one], b)
        assert torch.equal(alone[0], found[token])


@pytest.mark.parametrize("lora", [torch.float32, torch.bfloat16], ids=str)
def test_the_bound_kernel_is_the_reference(lora: torch.dtype, device: torch.device) -> None:
    """Of a layer that fuses parts of 40, 24 and 24 outputs, the last two of one projection."""
    from lsv_triton.layers.lora import AddAdapters

    layer = LinearLayer("m", "column", 70, (40, 24, 24), False, torch.float32, ("q", "kv", "kv"))
    slots = AdapterSlots(layer, 3, 6, lora, ActiveAdapters())
    for name in ("a", "b"):
        slots.keep(name, torch.randn(slots.get_buffer(name).shape).to(device, lora))
    slots.ranks[:] = array("i", [6, 6, 6])
    slots.rescaled[2] = 1
    slots.keep("rescale", torch.randn((3, 2, 88)).to(device))
    tokens = send_adapters(np.array([0, 1, 2, 0, 1, 3, 3]), device)
    x, y = torch.randn(7, 70, device=device).to(lora).float(), torch.randn(7, 88, device=device)
    found = AddAdapters(slots, slots.spec()).forward(y.clone(), x, tokens)
    expected = slots.reference(y.clone(), x, tokens)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 if lora == torch.float32 else 0.5)
    assert torch.equal(found[[0, 3]], y[[0, 3]])


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cuda", "xpu"])
def test_engines_give_the_tokens_of_plain_torch(platform: str, tmp_path: Path) -> None:
    """On an emulated GPU, where Triton's interpreter runs the kernels, fused layers among them."""
    if not triton.knobs.runtime.interpret:
        pytest.skip("emulated GPUs take the interpreter")
    base = tiny("llama", tmp_path / "base")
    adapter = write_adapter(tmp_path / "adapter", base, list(linear_layers(base)))
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    options = {
        "platform": platform, "emulate": True, "enable_lora": True, "enforce_eager": True, "max_num_seqs": 2,
        "dtype": "float32", "max_model_len": 32, "skip_tokenizer_init": True,
    }  # fmt: skip
    found: list[list[tuple[int, ...]]] = []
    for interpret in (False, True):
        with LLM(str(base), triton_interpret=interpret, **options) as llm:
            bound = {line.op: line.implementation for line in llm.fit.ops}
            assert bound["lora.add"].endswith("AddAdapters" if interpret else "reference")
            outputs = llm.generate(
                prompt_token_ids=[[5, 6, 7], [5, 6, 7]], sampling_params=params, use_tqdm=False,
                lora_request=[LoRARequest("a", 1, str(adapter)), None],
            )  # fmt: skip
            found.append([tuple(output.outputs[0].token_ids) for output in outputs])
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]
