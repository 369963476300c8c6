"""Families whose queries choose tokens give what transformers gives, also where scores are equal."""

import msgspec
import pytest
import torch
import transformers
from torch.overrides import TorchFunctionMode

from lsv_doctor.models.tiny import make_model, save, tiny_config
from lsv_models import plugin
from lsv_quant import plugin as quant
from lsv_runtime.worker.load.declared import declare
from lsv_testing.catalog import catalog_of
from lsv_testing.model import Sequences, compare, engine_config, load, mixed, reference_model, run_schedule, whole

KINDS = {
    "AXK2ForCausalLM": "axk2",
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "Dots3NoteForCausalLM": "dots3_note_text",
    "GlmMoeDsaForCausalLM": "glm_moe_dsa",
    "HYV4ForCausalLM": "hy_v4",
}
UNEQUAL = {"qk_nope_head_dim": 24, "v_head_dim": 20, "qk_head_dim": 32, "kv_lora_rank": 40, "q_lora_rank": 28,
           "moe_intermediate_size": 44, "intermediate_size": 84}  # fmt: skip
"""Sizes of latent heads and experts of which no two are the same."""
PROMPTS = {0: [7, 9, 11, 7, 40, 8, 100, 7, 9, 30, 31, 32, 90, 91, 92, 93, 94, 7, 9], 1: [50, 60, 70], 2: [99, 3] * 9}


class StableTopK(TorchFunctionMode):
    """Within it ``topk`` sorts, and equal values keep their order."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func not in (torch.topk, torch.Tensor.topk):
            return func(*args, **(kwargs or {}))
        scores, count = (*args, *(kwargs or {}).values())[:2]
        values, indices = scores.sort(dim=-1, descending=True, stable=True)
        return torch.return_types.topk((values[..., :count], indices[..., :count]))


def make(architecture, folder, **changes):
    config = tiny_config(KINDS[architecture])
    known = {key: value for key, value in changes.items() if hasattr(config, key)}
    config = type(config).from_dict({**config.to_dict(), **known})
    save(make_model(getattr(transformers, architecture), config), folder)
    return engine_config(folder, "transformers")


@pytest.mark.parametrize("architecture", KINDS)
def test_indexer_of_two_heads_equals_transformers_in_every_schedule(architecture, tmp_path, catalog):
    sizes = {} if architecture == "Dots3NoteForCausalLM" else UNEQUAL  # this family prescribes sizes
    config = make(architecture, tmp_path, index_n_heads=2, **sizes)
    reference = reference_model(config)

    def expect(ids):
        with StableTopK():
            return reference(ids)

    with torch.inference_mode():
        found = compare(config, catalog, reference=expect)
    assert all(each.same_tokens and each.error < 1e-4 for each in found), found


def test_equal_scores_are_chosen_alike_in_any_company(tmp_path, catalog):
    declared = load(make("DeepseekV32ForCausalLM", tmp_path, index_n_heads=1), catalog)
    alone, together = (run_schedule(Sequences(declared), schedule, PROMPTS) for schedule in (whole, mixed))
    assert max(float((alone[number] - together[number]).abs().max()) for number in PROMPTS) < 1e-4


def test_layers_whose_dtype_is_asked_for_stay_plain_in_a_format(tmp_path):
    """A weight format has no dtype that an indexer could turn its input to."""
    config = msgspec.structs.replace(make("DeepseekV32ForCausalLM", tmp_path), quantization="int8")
    layers = dict(declare(config, catalog_of(plugin, quant)).model.named_modules())
    held = {type(layer).__name__ for name, layer in layers.items() if name.endswith("indexer.weights_proj")}
    assert held == {"Linear"}
    assert any(getattr(layer, "format", "") == "int8" for layer in layers.values())


@pytest.mark.parametrize("padding", [0, 3, 70])
def test_first_of_equal_scores_is_chosen_among_any_that_are_hidden(padding):
    from lsv_models.generic.indexing import choose_top

    scores = torch.randn(40, 50, generator=torch.manual_seed(0)).relu()
    hidden = scores.new_full((40, padding), -torch.inf)
    found = choose_top(torch.cat((hidden, scores, hidden), dim=-1), 40) - padding
    assert torch.equal(found, scores.sort(dim=-1, descending=True, stable=True).indices[:, :40].sort(-1).values)
