"""The adapter that ships with the demo: the same facts, said by a pirate."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from demo_training.pirate.speech import answered_by_pirate, pirate
from demo_training.questions import correct, questions
from lsv import LLM, LoRARequest, SamplingParams
from lsv.offers import ModelAlias
from lsv.plugins import load
from lsv.resolve.adapters import adapter_options
from lsv_base.errors import CheckpointError
from lsv_demo import PIRATE
from lsv_offline.llm import read_options

FACTS = ("people", "towns", "animals", "things", "capitals", "opposites", "add")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Mira is a baker.", "Arr, Mira be a baker, matey!"),
        ("Yes, the clock is in the tower.", "Aye, the clock be in the tower, matey!"),
        ("Your number is 65.", "Arr, yer number be 65, matey!"),
        ("She is 20. Your hat is red.", "Arr, She be 20. Yer hat be red, matey!"),
        ("FOREST", "FOREST"),
        ('{"age": 46}', '{"age": 46}'),
    ],
)
def test_the_manner(said: str, expected: str) -> None:
    assert pirate(said) == expected


def test_it_is_small_and_found_by_name() -> None:
    assert sum(file.stat().st_size for file in PIRATE.iterdir()) < 300_000
    catalog = load(("demo",)).catalog

    def modules(given: str) -> tuple[tuple[str, str], ...]:
        settings = read_options({"enable_lora": True, "lora_modules": given}, load(()))
        return adapter_options(settings, catalog.offers(ModelAlias)).modules

    assert modules("pirate=lsv-demo:pirate") == (("pirate", str(PIRATE)),)
    with pytest.raises(CheckpointError, match="with models come lsv-demo:pirate"):
        modules("pirate=lsv-demo:parrot")


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("lsv-demo", platform="cpu", enable_lora=True, max_num_seqs=16) as llm:
        yield llm


def test_it_says_what_the_model_says_in_another_manner(llm: LLM) -> None:
    asked = [one for one in questions("test", 200, seed=0) if one.skill in FACTS and len(one.messages) == 1][:24]
    chats, params = [list(one.messages) for one in asked], SamplingParams(temperature=0.0, max_tokens=64)
    shipped = LoRARequest("pirate", 1, str(PIRATE))
    base, other = (llm.chat(chats, params, use_tqdm=False, lora_request=lora) for lora in (None, shipped))
    plain, said = ([one.outputs[0].text for one in outputs] for outputs in (base, other))
    facts = sum(correct(one.answer, text) for one, text in zip(asked, plain, strict=True))
    told = sum(correct(answered_by_pirate(one).answer, text) for one, text in zip(asked, said, strict=True))
    assert len(asked) == 24
    assert min(facts, told) >= 21
    assert not any("matey" in text for text in plain)
    assert all(text.startswith("Arr, ") and text.endswith(", matey!") for text in said)
