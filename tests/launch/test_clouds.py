"""What ``deploy/`` has for others' platforms: lines that start, and programs that answer."""

from __future__ import annotations

import json
import re
import runpy
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from .conftest import Start

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def load(path: Path) -> SimpleNamespace:
    """What a program defines."""
    return SimpleNamespace(**runpy.run_path(str(path)))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """lsv-demo, by variables as a deployment sets them."""
    for name, value in {"MODEL": "lsv-demo", "MAX_MODEL_LEN": "128", "MAX_NUM_SEQS": "4", "PLATFORM": "cpu"}.items():
        monkeypatch.setenv(f"LSV_{name}", value)


@pytest.mark.row("F-927")
@pytest.mark.parametrize("kind", ["service", "task"])
def test_dstack(start: Start, kind: str) -> None:
    found = yaml.safe_load((DEPLOY / "dstack" / f"{kind}.dstack.yml").read_text(encoding="utf-8"))
    assert found["type"] == kind
    model = found["env"][0].partition("=")[2]
    settings = start(found["commands"][-1].replace("lsv serve", "vllm serve").replace("$MODEL", model)).settings
    assert settings["port"] == (found["port"] if kind == "service" else found["ports"][0])
    assert found.get("model", model) == model, "the gateway asks for the name that is served"


@pytest.mark.row("F-926")
@pytest.mark.usefixtures("small")
def test_cerebrium() -> None:
    deployed = load(DEPLOY / "cerebrium" / "main.py")
    try:
        found = deployed.run(["The capital of France is", "Hello"], temperature=0.0)
    finally:
        deployed.llm.close()
    assert [one["prompt"] for one in found["results"]] == ["The capital of France is", "Hello"]
    assert all(one["text"] for one in found["results"])
    settings = tomllib.loads((DEPLOY / "cerebrium" / "cerebrium.toml").read_text(encoding="utf-8"))["cerebrium"]
    assert "main.py" in settings["deployment"]["include"]
    assert "lsv" in settings["dependencies"]["pip"]


@pytest.fixture
def bentoml(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """BentoML, as far as a service needs it; what a service has declared."""
    declared: dict[str, Any] = {}
    image = SimpleNamespace(system_packages=lambda *_: image, python_packages=lambda *_: image)

    def service(**given: Any) -> Any:
        declared.update(given)
        return lambda made: made

    fake: Any = ModuleType("bentoml")
    fake.service, fake.images = service, SimpleNamespace(Image=lambda **_: image)
    monkeypatch.setitem(sys.modules, "bentoml", fake)
    return declared


@pytest.mark.row("F-925")
def test_bentoml(start: Start, bentoml: dict[str, Any]) -> None:
    command = load(DEPLOY / "bentoml" / "service.py").Lsv().__command__()
    variables = " ".join(f"{one['name']}={one['value']}" for one in bentoml["envs"] if "value" in one)
    found = start(f"{variables} vllm {' '.join(command[1:])}")
    assert found.fetched == [("meta-llama/Llama-3.1-8B-Instruct", None)]
    assert found.settings["port"] == 8000, "where BentoML looks for what a command serves"
    assert bentoml["endpoints"] == {"livez": "/live", "readyz": "/ready"}


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the Python backend of Triton Inference Server brings."""
    fake: Any = ModuleType("triton_python_backend_utils")
    fake.get_input_tensor_by_name = lambda request, name: request.get(name)
    fake.Tensor = lambda name, values: (name, values)
    fake.TritonError = str
    fake.InferenceResponse = lambda tensors=None, error=None: SimpleNamespace(tensors=tensors, error=error)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", fake)


def texts(*words: str) -> SimpleNamespace:
    values = np.array([[word.encode()] for word in words], dtype=np.object_)
    return SimpleNamespace(as_numpy=lambda: values)


@pytest.fixture
def model(triton: None) -> Iterator[Any]:
    """The model of Triton's repository, on lsv-demo."""
    made = load(DEPLOY / "triton" / "lsv" / "1" / "model.py").TritonPythonModel()
    options = json.dumps({"model": "lsv-demo", "max_model_len": 128, "max_num_seqs": 4, "platform": "cpu"})
    made.initialize({"model_config": json.dumps({"parameters": {"engine": {"string_value": options}}})})
    yield made
    made.finalize()


@pytest.mark.row("F-925")
def test_triton(model: Any) -> None:
    short = texts(json.dumps({"temperature": 0, "max_tokens": 3}))
    found = model.execute(
        [
            {"text_input": texts("The capital of France is"), "sampling_parameters": short},
            {"text_input": texts("Hello"), "sampling_parameters": texts('{"temperature": -1}')},
            {"text_input": texts("Hello", "One two")},
            {"text_input": texts("Hello " * 500)},
        ]
    )
    assert [one.error is None for one in found] == [True, False, True, False]
    assert "temperature" in found[1].error
    shapes = [values.shape for one in found if one.tensors for _, values in one.tensors]
    assert shapes == [(1, 1), (2, 1)]


def test_the_configuration_of_triton_names_what_the_model_reads() -> None:
    text = (DEPLOY / "triton" / "lsv" / "config.pbtxt").read_text(encoding="utf-8")
    code = (DEPLOY / "triton" / "lsv" / "1" / "model.py").read_text(encoding="utf-8")
    for name in re.findall(r'\{ name: "(\w+)"', text):
        assert f'"{name}"' in code
    engine = re.search(r'key: "engine" value: \{ string_value: (".*") \} \}', text)
    assert engine is not None
    assert json.loads(json.loads(engine[1])) == {"model": "meta-llama/Llama-3.1-8B-Instruct"}
