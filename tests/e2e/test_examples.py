"""The programs in ``examples/`` run as they stand, against lsv-demo."""

from __future__ import annotations

import base64
import inspect
import os
import runpy
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import lsv_multimodal.plugin
from demo_training.senses.held_out import questions
from lsv.offers import load_object
from lsv_doctor.models.tiny import make_model, save, tiny_config
from lsv_testing.tiny import write_tokenizer

pytestmark = pytest.mark.xdist_group("server")

EXAMPLES = Path(__file__).parents[2] / "examples"
DEPLOY = Path(__file__).parents[2] / "deploy"
CLIENTS = Path(os.environ["LSV_TEST_CLIENTS"]) if "LSV_TEST_CLIENTS" in os.environ else None
"""Where `make test-clients` installs the clients: an environment for each requirements file, and node_modules."""
BESIDE = ("options", "families")
"""Modules that examples share."""
OFFERED = {"blip-2": "blip2", "glm4v": "glm4v_9b", "glm4_1v": "glm4v", "phi3_v": "phi3v"}
"""What processors call families that the examples have under vLLM's keys."""
ENVIRONMENTS = {"clients/llama_index_chat": "openai-2", "clients/instructor_answer": "openai-2"}
"""Clients that need another environment than openai-3."""
SMALL = ("--max-model-len", "1024", "--max-num-seqs", "8")


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What an example defines; it finds the files beside it."""
    path = EXAMPLES / f"{name}.py"
    monkeypatch.syspath_prepend(str(path.parent))
    for beside in BESIDE:
        monkeypatch.delitem(sys.modules, beside, raising=False)
    return SimpleNamespace(**runpy.run_path(str(path)))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run an example in this process, a client in its environment if there is one; what it prints, by lines."""

    def run(name: str, *arguments: object) -> list[str]:
        if CLIENTS is not None and name.startswith("clients/"):
            environment = ENVIRONMENTS.get(name, "openai-3")
            return run_process(CLIENTS / environment / "bin" / "python", EXAMPLES / f"{name}.py", *arguments)
        load(name, monkeypatch).main([str(one) for one in arguments])
        return capsys.readouterr().out.splitlines()

    yield run
    for beside in BESIDE:
        sys.modules.pop(beside, None)


def run_process(*line: object) -> list[str]:
    ran = subprocess.run([str(one) for one in line], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def need(package: str) -> None:
    if CLIENTS is None:
        pytest.importorskip(package, reason=f"needs {package}, which make test-clients installs")


@pytest.mark.row("F-896")
def test_clients(run, server) -> None:
    url = ("--url", f"{server.url}/v1")
    completions = run("clients/completion", *url)
    assert [line[:2] for line in completions] == ["0:", "  ", "1:", "  "]
    assert "Madrid" in run("clients/chat", *url)[0]
    called, answered = run("clients/tools", *url)
    assert called.startswith("it calls get_weather(")
    assert "sunny" in answered
    assert run("clients/responses", *url) == [called, answered]
    one, several = run("clients/vision", *url)
    assert "red" in one.lower()
    assert several.startswith("2 picture(s): ")
    assert run("clients/audio", *url)[0]
    nearness = [float(line.split()[0]) for line in run("clients/embedding", *url)]
    assert nearness[0] > nearness[1] > nearness[2]


def test_ollamas_client(run, server) -> None:
    need("ollama")
    answer, counts, called, told = run("clients/ollama_chat", "--host", server.url)
    assert "Madrid" in answer
    assert " tokens in " in counts
    assert called == "it calls get_weather({'city': 'Bern'})"
    assert "sunny" in told


IN_NODE = {
    "openai_chat": ["Madrid", 'it calls get_weather({"city": "Bern"})', 'it calls get_weather({"city": "Bern"})'],
    "messages": ["(end_turn, ", 'it calls get_weather({"city":"Bern"})'],
    "ollama_chat": ["Madrid", " tokens in "],
}


@pytest.mark.parametrize("script", IN_NODE)
def test_clients_for_node(script: str, server, tmp_path: Path) -> None:
    if CLIENTS is None or not (CLIENTS / "node_modules").is_dir():
        pytest.skip("needs npm and make test-clients")
    (tmp_path / "node_modules").symlink_to(CLIENTS / "node_modules")
    copied = shutil.copy(EXAMPLES / "clients" / f"{script}.mjs", tmp_path)
    lines = run_process("node", copied, server.url)
    for line, said in zip(lines, IN_NODE[script], strict=True):
        assert said in line


BY_LIBRARY = {
    "langchain_chat": ["Madrid", "it calls get_weather({'city': 'Bern'})", "sunny"] * 2,
    "litellm_chat": ["Madrid", 'it calls get_weather({"city": "Bern"})'],
    "pydantic_ai_agent": ["Madrid", "it calls get_weather(Bern)", "sunny"],
    "instructor_answer": ["Capital(city='Madrid')", "Weather(city='Bern')"],
    "llama_index_chat": ["Madrid", "it calls get_weather(Bern)", "sunny"],
    "llm_chat": ["Madrid", "it calls get_weather(Bern)", "sunny"],
}


@pytest.mark.skipif(CLIENTS is None, reason="needs make test-clients")
@pytest.mark.parametrize("script", BY_LIBRARY)
def test_clients_of_libraries(script: str, run, server) -> None:
    lines = run(f"clients/{script}", "--url", f"{server.url}/v1")
    for line, said in zip(lines, BY_LIBRARY[script], strict=True):
        assert said in line


def test_client_of_messages(run, server) -> None:
    need("anthropic")
    counted, called, answered = run("clients/messages", "--url", server.url)
    assert counted.startswith("the prompt has ")
    assert called == "it calls get_weather({'city': 'Bern'})"
    assert "sunny" in answered


def test_client_of_agents_calls_a_tool(run, server) -> None:
    need("agents")
    called, answered = run("clients/agent", "--url", f"{server.url}/v1")
    assert called == "it calls get_weather(Bern)"
    assert "sunny" in answered


@pytest.mark.slow
@pytest.mark.row("F-894")
async def test_the_page_continues_a_text(server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within an event loop: outside of one, gradio makes a loop that it never closes."""
    pytest.importorskip("gradio")
    page = load("clients/page", monkeypatch)
    complete = page.completing(f"{server.url}/v1")
    *_, last = complete("The capital of France is")
    assert last.startswith("The capital of France is")
    assert len(last) > len("The capital of France is")
    assert page.build(complete) is not None


@pytest.mark.row("F-889")
def test_the_node_of_comfyui(server, tmp_path: Path) -> None:
    node = runpy.run_path(str(DEPLOY / "comfyui" / "lsv_nodes" / "__init__.py"))["NODE_CLASS_MAPPINGS"]["LsvAsk"]
    given = node.INPUT_TYPES()
    assert {*given["required"], *given["optional"]} == set(inspect.signature(node.ask).parameters) - {"self"}
    with Image.open(held_out("image_url", tmp_path / "picture.png")) as file:
        images = np.asarray(file.convert("RGB"), dtype=np.float32)[None] / 255
    ask = partial(getattr(node(), node.FUNCTION), url=f"{server.url}/v1", max_tokens=48, temperature=0.0)
    (seen,) = ask("What colour is it?", images=images)
    assert seen.startswith("It is ")
    assert "Paris" in ask("What is the capital of France?")[0]
    with pytest.raises(RuntimeError, match="the server answered 404"):
        ask("Hello", model="nobody")


@pytest.mark.row("F-899", "F-900")
def test_offline(run) -> None:
    lines = run("offline/completion", *SMALL)
    assert [line.split("'")[1] for line in lines] == [
        "Hello, my name is", "The president of the United States is", "The capital of France is", "The future of AI is",
    ]  # fmt: skip
    assert "Paris" in run("offline/chat", *SMALL)[0]
    nearness = [float(line.split()[0]) for line in run("offline/embedding", *SMALL)]
    assert nearness[0] > nearness[1] > nearness[2]


@pytest.mark.row("F-899")
def test_offline_caches_drafts_and_adapters(run) -> None:
    first, second, said = run("offline/prefix_caching", *SMALL)
    assert " 0 tokens" in first
    assert " 0 tokens" not in second
    assert said == "the same answers"
    assert run("offline/speculation", *SMALL)[-1] == "the same answers"
    base, pirate = run("offline/adapters", *SMALL, "--quantization", "asym_int4_g32")
    assert (base[:5], pirate[:7]) == ("base:", "pirate:")
    assert base[5:] != pirate[7:]


def held_out(kind: str, file: Path) -> Path:
    """A file that lsv-demo has never seen, or heard."""
    parts = (part for one in questions(1, seed=0) for part in one.messages[-1]["content"] if part["type"] == kind)
    part = next(parts)[kind]
    file.write_bytes(base64.b64decode(part["data"] if "data" in part else part["url"].partition(",")[2]))
    return file


@pytest.mark.row("F-323", "F-898", "F-899")
def test_offline_media(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture, sound = held_out("image_url", tmp_path / "picture.png"), held_out("input_audio", tmp_path / "sound.wav")
    seen = run("offline/vision", picture, "--num-prompts", 2, *SMALL)
    assert seen[0].startswith("It is ")
    assert seen[0] == seen[1]
    assert run("offline/audio", sound, "--num-audios", 2, *SMALL)[0]
    for example in ("vision", "audio"):
        with pytest.raises(ValueError, match="no model type 'fuju'; there are"):
            load(f"offline/{example}", monkeypatch).main([str(picture), "-m", "fuju"])


@pytest.mark.row("F-323", "F-898")
def test_a_family_is_chosen_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its model, unless another one is named, and its prompts; every family has a processor."""
    made: list[dict[str, object]] = []
    asked: list[dict[str, object]] = []
    said = SimpleNamespace(outputs=[SimpleNamespace(text="a cat")])

    class FakeLLM:
        def __init__(self, **options: object) -> None:
            made.append(options)

        def __enter__(self) -> FakeLLM:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def generate(self, prompts: list[dict[str, object]], params: object) -> list[SimpleNamespace]:
            asked.extend(prompts)
            return [said] * len(prompts)

    (tmp_path / "file").write_bytes(b"shown")
    file = str(tmp_path / "file")
    for example, own in (("vision", ["-m", "llava"]), ("audio", ["-m", "ultravox", "--num-audios", "2"])):
        main = load(f"offline/{example}", monkeypatch).main
        main.__globals__["LLM"] = FakeLLM
        main([file, *own, "--question", "What?", "--num-prompts", "3"])
        main([file, *own, "--question", "What?", "--model", "mine"])
    assert [options["model"] for options in made] == [
        "llava-hf/llava-1.5-7b-hf", "mine", "fixie-ai/ultravox-v0_5-llama-3_2-1b", "mine",
    ]  # fmt: skip
    assert capsys.readouterr().out == "a cat\n" * 8
    assert asked[0] == {"prompt": "USER: <image>\nWhat?\nASSISTANT:", "multi_modal_data": {"image": b"shown"}}
    assert asked[4]["multi_modal_data"] == {"audio": [b"shown", b"shown"]}
    assert str(asked[4]["prompt"]).count("<|audio|>") == 2


@pytest.mark.row("F-898")
def test_prompts_of_families_have_the_marks_that_their_processors_read(monkeypatch: pytest.MonkeyPatch) -> None:
    families = load("offline/families", monkeypatch)
    offers = {offer.name: offer for offer in lsv_multimodal.plugin.lsv_processors()}
    for name, family in {**families.SEEING, **families.HEARING}.items():
        prompt = family.prompt("What is this?")
        assert "What is this?" in prompt
        assert "{" not in prompt
        offer = offers[OFFERED.get(name, name.replace("-", "_").replace(".", "_"))]
        marks = vars(load_object(offer.place)).get("marks")
        if isinstance(marks, dict):
            assert any(mark in prompt for mark in marks.values()), name


@pytest.mark.row("F-899")
def test_offline_encoders_and_weights(run, tmp_path: Path) -> None:
    from transformers import BartForConditionalGeneration

    save(make_model(BartForConditionalGeneration, tiny_config("bart")), tmp_path)
    write_tokenizer(tmp_path)
    assert len(run("offline/encoder_decoder", "--model", tmp_path, "--max-model-len", "64")) == 3
    assert len(run("offline/weights", *SMALL)) >= 1


@pytest.mark.slow
def test_one_runs_as_a_user_runs_it() -> None:
    line = [sys.executable, EXAMPLES / "offline" / "completion.py", *SMALL]
    done = subprocess.run(line, capture_output=True, text=True, timeout=200, env={**os.environ}, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4


def test_the_page_of_examples_names_all() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    files = {file.name for file in EXAMPLES.rglob("*.py") if file.stem != "options"}
    assert {name for name in files if f"`{name}" not in text} == set()
