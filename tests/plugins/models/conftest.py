"""Checkpoints of the families under test, made once a session, and the catalog of the models plugin."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from lsv.config import EngineConfig
from lsv.plugins.catalog import Catalog
from lsv_models import plugin
from lsv_runtime.devices.collectives import BackendCommunicator, gloo
from lsv_runtime.devices.communicator import Group
from lsv_runtime.nn.decoder import DenseDecoder
from lsv_runtime.weights.naming import spellings
from lsv_runtime.worker.load.bound import bind_ops
from lsv_runtime.worker.load.declared import Declared, declare
from lsv_runtime.worker.load.loaded import fill, open_source
from lsv_testing.catalog import catalog_of
from lsv_testing.model import engine_config
from lsv_testing.tiny import tiny


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return catalog_of(plugin)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A folder with a tiny checkpoint of a family and shape."""
    made: dict[str, Path] = {}

    def make(family: str, **shape: Any) -> Path:
        key = f"{family}{sorted(shape.items())}"
        if key not in made:
            made[key] = tiny(family, tmp_path_factory.mktemp(family), **shape)
        return made[key]

    return make


@pytest.fixture
def publish(tmp_path: Path, catalog: Catalog) -> Callable[..., tuple[dict[str, torch.Tensor], EngineConfig]]:
    """Write a checkpoint with random weights under the family's own names; its tensors and how to run it."""

    def write(
        offer: str, architecture: str, json_keys: Any, **given: Any
    ) -> tuple[dict[str, torch.Tensor], EngineConfig]:
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture], **json_keys}))
        config = engine_config(tmp_path, offer, **given)
        model: Any = declare(config, catalog)
        torch_seed = torch.manual_seed(0)
        tensors: dict[str, torch.Tensor] = {}
        for piece in (piece for slot in model.slots for piece in slot.pieces):
            own_names = model.model.prefixes is not DenseDecoder.prefixes
            theirs = spellings(piece.name, model.model.prefixes)[:2][-1] if own_names else piece.name
            assert model.model.rename(theirs) == piece.name
            mean = 1.0 if len(piece.shape) == 1 and not theirs.endswith("bias") else 0.0
            if theirs not in tensors:
                tensors[theirs] = torch.randn(piece.shape, generator=torch_seed) * 0.2 + mean
        save_file(tensors, tmp_path / "model.safetensors")
        return tensors, config

    return write


@pytest.fixture
def on_two_ranks(tmp_path: Path) -> Callable[..., list[tuple[Declared, Any]]]:
    """What each of two ranks of a configuration has, and what ``compute`` makes of it."""

    def spread(
        config: EngineConfig, catalog: Catalog, compute: Callable[[Declared], Any]
    ) -> list[tuple[Declared, Any]]:
        groups = [Group("tp", (0, 1), rank, str(tmp_path / "meeting")) for rank in range(2)]

        def run(group: Group) -> tuple[Declared, Any]:
            communicator = BackendCommunicator(group, gloo, torch.device("cpu"))
            declared = declare(config, catalog, communicator=communicator)
            bind_ops(declared, catalog, "cpu", reference=config.reference_ops)
            fill(declared, open_source(config, declared, catalog))
            computed = compute(declared)
            communicator.close()
            return declared, computed

        with ThreadPoolExecutor(2) as ranks:
            return list(ranks.map(run, groups))

    return spread
