"""Models cut into stages: the stages, one after the other, compute what the whole model does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
import transformers

import lsv_testing.model
from lsv import plugins
from lsv.config import EngineConfig
from lsv.offers import ModelOffer
from lsv_doctor.models.classes import Class, read_classes
from lsv_doctor.models.tiny import make_model, save, tiny_config
from lsv_runtime.nn.model import Model, run
from lsv_runtime.nn.step import Step
from lsv_runtime.pipeline.stage import Stage
from lsv_runtime.worker.load.cut import cut
from lsv_runtime.worker.load.declared import Declared, declare
from lsv_runtime.worker.load.loaded import fill, open_source
from lsv_testing.model import Sequences, engine_config, load
from lsv_testing.tiny import tiny

IDS = tuple(range(7, 47))
CHUNKS = (23, 16, 1)
FAST = ("llama", "gemma2", "gpt2", "gpt_oss", "deepseek_v3", "jamba")
CATALOG = plugins.load(("models",)).catalog
OFFERS = {
    name: offer.name for offer in CATALOG.offers(ModelOffer) if not offer.fallback for name in offer.architectures
}
CAUSAL = [one for one in read_classes().values() if one.kind == "causal" and one.architecture in OFFERS]


class Passing(torch.nn.Module):
    """Where the whole model has its head."""

    def forward(self, states: torch.Tensor, step: Step) -> torch.Tensor:
        return states


def staged(config: EngineConfig, count: int) -> list[Declared]:
    stages = []
    for number in range(count):
        declared = declare(config, CATALOG)
        cut(declared, Stage(number, count), config)
        source = open_source(config, declared, CATALOG)
        fill(declared, source)
        source.close()
        stages.append(declared)
    return stages


def compute(stages: Sequence[Declared], monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """The logits of every token, computed in chunks."""
    every, logits, states = [Sequences(declared) for declared in stages], [], torch.empty(0)

    def run_on(model: Model, step: Step) -> torch.Tensor:
        assert model.receives in (None, (states.shape[-1], states.dtype)), "there must be room for what is handed on"
        return run(model, step if model.receives is None else replace(step, received=states))

    monkeypatch.setattr(lsv_testing.model, "run", run_on)
    for declared in stages:
        if not declared.model.ends:
            declared.model.head = Passing()
    for sequences in every:
        sequences.add(0, IDS)
    for count in CHUNKS:
        for sequences in every:
            (states,) = sequences.step([(0, count)])
        logits.append(states)
    return torch.cat(logits)


def tiny_class(one: Class, folder: Path) -> EngineConfig:
    save(make_model(getattr(transformers, one.architecture), tiny_config(one.family)), folder)
    return engine_config(folder, OFFERS[one.architecture], max_len=64)


@pytest.mark.row("F-280", "F-566", "F-958")
@pytest.mark.parametrize(
    "one",
    [pytest.param(one, id=one.family, marks=[pytest.mark.slow] * (one.family not in FAST)) for one in CAUSAL],
)
def test_stages_compute_what_the_whole_model_does(one: Class, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_stages(tiny_class(one, tmp_path), monkeypatch)


@pytest.mark.parametrize("family", ["mamba", "zaya"])
def test_stages_have_room_for_states_of_other_widths_and_dtypes(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = next(one for one in CAUSAL if one.family == family)
    config = msgspec.structs.replace(tiny_class(one, tmp_path), dtype="bfloat16")
    assert compute(staged(config, 2), monkeypatch).isfinite().all()


def test_a_family_is_cut_where_its_checkpoint_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemma 4 without inputs of layers and without shared keys and values; the class has both."""
    own = {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "head_dim": 16, "pad_token_id": 0}
    config = engine_config(tiny("gemma4_text", tmp_path, **own), "gemma4", max_len=64)
    assert declare(config, CATALOG).model.staged
    check_stages(config, monkeypatch)


def check_stages(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load(config, CATALOG)
    if len(whole.model.layers) < 2 or not whole.model.staged:
        pytest.skip("it is not cut")
    expected = compute([whole], monkeypatch)
    found = compute(staged(config, 2), monkeypatch)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
