"""Models that read the whole text for every token give what ``generate()`` gives without a cache, in any steps."""

import json

import pytest
import torch
import transformers

from lsv_base.errors import CheckpointError, ConfigError
from lsv_doctor.models.tiny import make_model, save, tiny_config
from lsv_doctor.models.wrappers import tiny_wrapper
from lsv_doctor.models.wrappers.halves import language_model
from lsv_models.rereading.tokens import _to_ids, _to_signs
from lsv_models.rereading_offers import OFFERS
from lsv_runtime.ops import find_uncapturable
from lsv_runtime.weights.place import Declaration, Shard, Weights
from lsv_runtime.weights.quantizer import Unquantised
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import Sequences, engine_config, load, mixed, run_schedule

KINDS = {
    "BltForCausalLM": "blt",
    "CpmAntForCausalLM": "cpmant",
    "DeepseekV4ForCausalLM": "deepseek_v4",
    "DogeForCausalLM": "doge",
    "Inkling2ForCausalLM": "inkling2_text",
    "InklingForCausalLM": "inkling_text",
    "Qwen4ExpForCausalLM": "qwen4_exp_text",
    "ReformerModelWithLMHead": "reformer",
    "XLMWithLMHeadModel": "xlm",
    "XLNetLMHeadModel": "xlnet",
}
WRAPPERS = {
    "EvollaForProteinText2Text": "evolla",
    "Glm5NextForConditionalGeneration": "glm5_next",
    "Inkling2ForConditionalGeneration": "inkling2",
    "Kosmos2ForConditionalGeneration": "kosmos-2",
}
FAST = ("XLNetLMHeadModel", "XLMWithLMHeadModel")
PROMPTS = {0: [7, 9, 11, 7, 40, 8, 100, 7, 9, 30, 31, 32, 90, 91, 92, 93, 94, 7, 9], 1: [50, 60, 70], 2: [99] * 5}


def expect(model, ids):
    """transformers' logits [length, vocab] of the token after each beginning."""
    rows = []
    for count in range(1, len(ids) + 1):
        given = model.prepare_inputs_for_generation(torch.tensor([ids[:count]]), use_cache=False)
        rows.append(model(**given).logits[0, -1].float())
    return torch.stack(rows)


def expect_text(wrapper, ids):
    """The same of a wrapper's language model: nothing but the text itself is given."""
    asked, _ = language_model(wrapper)
    return torch.stack([asked(input_ids=torch.tensor([ids[: n + 1]])).logits[0, -1].float() for n in range(len(ids))])


@torch.inference_mode()
def check(architecture, folder, catalog):
    wraps = architecture in WRAPPERS
    config = tiny_wrapper(WRAPPERS[architecture]) if wraps else tiny_config(KINDS[architecture])
    model = make_model(getattr(transformers, architecture), config)
    save(model, folder)
    offer = next(offer for offer in OFFERS if architecture in offer.architectures)
    sequences = Sequences(load(engine_config(folder, offer.name), catalog))
    assert "text" in find_uncapturable(sequences.declared.model)
    found = run_schedule(sequences, mixed, PROMPTS)
    expected = {number: (expect_text if wraps else expect)(model, ids) for number, ids in PROMPTS.items()}
    gap = max(float((found[number] - rows).abs().max() / rows.abs().max()) for number, rows in expected.items())
    assert gap < 1e-4


@pytest.mark.parametrize("architecture", FAST)
def test_some_give_what_transformers_gives(architecture, tmp_path, catalog):
    check(architecture, tmp_path, catalog)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", sorted({*KINDS, *WRAPPERS} - set(FAST)))
def test_all_give_what_transformers_gives(architecture, tmp_path, catalog):
    check(architecture, tmp_path, catalog)


@pytest.mark.parametrize(
    ("architecture", "uncached"), [("XLMWithLMHeadModel", {}), ("XLNetLMHeadModel", {"use_mems": False})]
)
def test_what_is_expected_is_what_generate_gives_without_a_cache(architecture, uncached):
    """A plain forward pass of these families says nothing of the next token: it knows no place for one."""
    model = make_model(getattr(transformers, architecture), tiny_config(KINDS[architecture]))
    model.generation_config = transformers.GenerationConfig(pad_token_id=0)
    given = torch.tensor([PROMPTS[0]])
    with torch.inference_mode():
        ids = model.generate(
            given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=8, use_cache=False, **uncached
        )[0].tolist()
        rows = expect(model, ids[:-1])[len(PROMPTS[0]) - 1 :]
        plain = model(torch.tensor([ids[:-1]])).logits[0, len(PROMPTS[0]) - 1 :]
    assert rows.argmax(-1).tolist() == ids[len(PROMPTS[0]) :] != plain.argmax(-1).tolist()


def test_offers_have_an_architecture_each():
    assert sorted(name for offer in OFFERS for name in offer.architectures) == sorted((*KINDS, *WRAPPERS))
    assert all(offer.adapts and "reads the whole text again" in offer.note for offer in OFFERS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_every_cache_holds_every_id(dtype):
    ids = torch.tensor([0, 1, 2, 255, 256, 65_537, 262_143, 2**31 - 1])
    assert _to_ids(_to_signs(ids, torch.float32).to(dtype).float()).tolist() == ids.tolist()


def test_random_hashes_are_refused(tmp_path, catalog):
    config = {**tiny_config("reformer").to_dict(), "architectures": ["ReformerModelWithLMHead"], "hash_seed": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"random hashes.*hash_seed"):
        declare(engine_config(tmp_path, "reformer"), catalog)


def test_ranks_are_refused():
    from lsv_models.rereading.model import Rereading

    w = Weights(Declaration(torch.float32, torch.device("cpu"), Unquantised(), Shard(0, 2)))
    with pytest.raises(ConfigError, match="can't be split over 2 ranks"):
        Rereading(w, {"model_type": "xlm"}, 64)
