"""MLP speculators: their arithmetic is that of the paper, whatever a checkpoint shares, and misfits are named."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from lsv import LLM, SamplingParams
from lsv.offers import KernelOffer, OpSpec
from lsv.resolve.locate import read_config
from lsv_base.errors import CheckpointError, ConfigError
from lsv_drafters.choices import part
from lsv_drafters.speculator import SpeculatorHeads
from lsv_runtime.drafts.speculator import Speculator
from lsv_runtime.nn.sampling import Choices
from lsv_runtime.ops import Kernel
from lsv_runtime.weights.checkpoint import SafetensorsSource
from lsv_runtime.weights.quantizer import PlainLinear
from lsv_runtime.worker.load.bound import bind_filled
from lsv_runtime.worker.sampling.choices import join_choices, make_choice
from lsv_testing.catalog import catalog_of
from lsv_testing.fakes.engine import engine_config
from lsv_testing.fakes.speculator import write_speculator
from lsv_testing.tiny import tiny

GREEDY = join_choices([make_choice(SamplingParams(temperature=0.0), 0)])

PLAIN: dict[str, Any] = {"dtype": "float32", "max_model_len": 96, "max_num_seqs": 4, "skip_tokenizer_init": True}


def norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def expected(tensors: dict[str, Tensor], state: Tensor, token: int, places: int, *, tied: bool, scales: bool) -> Tensor:
    """The logits of each place where the likeliest token follows, by the formulas of the paper."""
    weight = 0.5 ** (0.5 / places)
    inner = tensors["speculator.ln.0.weight"].numel()
    x, found = norm(state) / math.sqrt(2) if scales else state, []
    for place in range(places):

        def of(part: str, kind: str = "weight", place: int = place) -> Tensor:
            number = place if not tied else min(place, 1) if part == "proj" else 0
            return tensors[f"speculator.{part}.{number}.{kind}"]

        x = of("proj") @ x + math.sqrt((1 - weight**2) * (inner / 2)) / weight * of("emb")[token]
        x = torch.nn.functional.gelu(of("ln") * norm(x) + of("ln", "bias"))
        found.append(of("head") @ x)
        token = int(found[-1].argmax())
    return torch.stack(found)


@pytest.mark.row("F-361")
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("scales", [False, True])
def test_states_go_from_place_to_place(tied: bool, scales: bool, tmp_path: Path) -> None:
    folder = write_speculator(tmp_path / "s", places=4, tied=tied, scales=scales)
    with closing(SafetensorsSource(folder)) as source:
        tensors = {name: source.read(name, 0, info.shape[0]).clone() for name, info in source.tensors().items()}
        heads = SpeculatorHeads(read_config(folder, {}), source, torch.float32, torch.device("cpu"))
    state = torch.randn(64, generator=torch.Generator().manual_seed(1))
    wanted = expected(tensors, state, 5, 4, tied=tied, scales=scales)
    seen: list[Tensor] = []
    drawn = heads.draft(state[None], torch.tensor([5]), [1] * 4, GREEDY, partial(watched, seen))
    torch.testing.assert_close(torch.cat(seen), wanted, rtol=1e-4, atol=1e-4)
    assert drawn.tolist() == wanted.argmax(-1).tolist()


def watched(seen: list[Tensor], logits: Tensor, choices: Choices) -> Tensor:
    seen.append(logits)
    return logits.argmax(-1)


class Whole(Kernel):
    """A kernel of all places, which calls their layers."""

    def __init__(self, module: Speculator, spec: OpSpec) -> None:
        self.module = module
        self.layers = [Doubling(place.head, place.head.spec()) for place in module.places]
        for place, kernel in zip(module.places, self.layers, strict=True):
            place.head.use(kernel)

    def pack(self) -> None:
        assert all(layer.packed == 1 for layer in self.layers), "layers pack before who reads what they packed"

    def forward(self, states: Tensor, tokens: Tensor, counts: Sequence[int], choices: Choices, choose: Any) -> Tensor:
        return torch.full((sum(counts),), 7)


def test_a_platform_may_draft_by_one_kernel(tmp_path: Path) -> None:
    offer = KernelOffer("speculator", "cpu", f"{__name__}:Whole", lambda spec: None)
    catalog = catalog_of(SimpleNamespace(lsv_kernels=lambda: [offer]))
    with closing(SafetensorsSource(write_speculator(tmp_path / "s", places=3))) as source:
        heads = SpeculatorHeads(read_config(tmp_path / "s", {}), source, torch.float32, torch.device("cpu"))
    bind_filled(heads, engine_config(platform="cpu"), catalog)
    drawn = heads.draft(torch.randn(2, 64), torch.tensor([5, 6]), [2, 2, 1], GREEDY.repeat(2), lambda *_: None)
    assert part(drawn, [2, 2, 1], 2) == [[7, 7, 7], [7, 7]]


class Doubling(Kernel):
    """A kernel of linear layers that can be told from the reference."""

    def __init__(self, module: PlainLinear, spec: OpSpec) -> None:
        self.module, self.packed = module, 0

    def pack(self) -> None:
        self.packed += 1

    def forward(self, x: Tensor) -> Tensor:
        assert self.packed == 1, "heads that share a matrix pack it once"
        return 2.0 * self.module.reference(x)


def test_the_platforms_kernels_multiply(tmp_path: Path) -> None:
    offer = KernelOffer("linear", "cpu", f"{__name__}:Doubling", lambda spec: None)
    catalog = catalog_of(SimpleNamespace(lsv_kernels=lambda: [offer]))
    folder = write_speculator(tmp_path / "s", places=2, tied=True)
    for reference, factor in ((True, 1.0), (False, 2.0)):
        with closing(SafetensorsSource(folder)) as source:
            heads = SpeculatorHeads(read_config(folder, {}), source, torch.float32, torch.device("cpu"))
        first, x = heads.chain.places[0], torch.randn(1, 24)
        expected = factor * first.head(x)
        bind_filled(heads, engine_config(platform="cpu", reference_ops=reference), catalog)
        torch.testing.assert_close(first.head(x), expected)


def test_as_many_are_drafted_as_there_are_places(tmp_path: Path) -> None:
    model, heads = tiny("llama", tmp_path / "m"), write_speculator(tmp_path / "s", places=2)
    with LLM(str(model), **PLAIN, speculative_config={"model": str(heads), "adaptive": False}) as llm:
        assert llm.config.drafts is not None
        assert (llm.config.drafts.drafter, llm.config.drafts.most) == ("mlp_speculator", 2)
        llm.generate([{"prompt_token_ids": [5, 6, 7]}], SamplingParams(max_tokens=8, ignore_eos=True, detokenize=False))
        assert len(llm.stats.speculation.by_place) == 2


@pytest.mark.parametrize(
    ("shape", "more", "words"),
    [
        ({"hidden": 32}, {}, "made for another model"),
        ({"vocabulary": 300}, {}, "drafts 300 tokens, and the model has 320"),
        ({}, {"num_speculative_tokens": 9}, "drafts 3 at most"),
    ],
)
def test_a_misfit_is_named(shape: dict[str, Any], more: dict[str, Any], words: str, tmp_path: Path) -> None:
    model, heads = tiny("llama", tmp_path / "m"), write_speculator(tmp_path / "s", **shape)
    with pytest.raises(ConfigError, match=words):
        LLM(str(model), **PLAIN, speculative_config={"model": str(heads), **more})


def test_a_tensor_that_lacks_is_named(tmp_path: Path) -> None:
    folder = write_speculator(tmp_path / "s", places=2)
    config = {**read_config(folder, {}), "n_predict": 3}
    with closing(SafetensorsSource(folder)) as source, pytest.raises(CheckpointError, match=r"proj\.2\.weight"):
        SpeculatorHeads(config, source, torch.float32, torch.device("cpu"))
