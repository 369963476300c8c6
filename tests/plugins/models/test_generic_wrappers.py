"""Wrappers of transformers through the adapter: the text of their language models, and nothing of their towers."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING

from lsv import LLM, SamplingParams
from lsv_base.errors import CheckpointError
from lsv_models import plugin
from lsv_models.generic.building import make_model, parse
from lsv_quant import plugin as quant
from lsv_runtime.worker.load.declared import declare
from lsv_testing.adapters import linear_layers, merge, write_adapter
from lsv_testing.adapters.filling import load_adapter, with_slots
from lsv_testing.catalog import catalog_of
from lsv_testing.model import SCHEDULES, Sequences, check_model, compare_logits, engine_config, load, run_schedule
from lsv_testing.tiny import SHAPE, draw_weights

TOWER: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 7,
}  # fmt: skip
SOUND: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "num_mel_bins": 16,
}  # fmt: skip
TEXT: dict[str, Any] = {**SHAPE, "head_dim": 16, "pad_token_id": 0}
TURNS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2], "mrope_interleaved": True}
SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
WINDOWED = {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]}
DEEP = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64, "patch_size": 4,
        "deepstack_visual_indexes": [0, 1]}  # fmt: skip
LATENT = {"kv_lora_rank": 24, "q_lora_rank": 20, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
          "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
          "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "head_dim": 8}  # fmt: skip
OPT = {"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 96,
       "word_embed_proj_dim": 64, "vocab_size": 320, "max_position_embeddings": 512}  # fmt: skip

RUN: dict[str, dict[str, Any]] = {
    "idefics3": {"text_config": {**TEXT, "model_type": "llama"}, "vision_config": TOWER},
    "qwen3_vl": {"text_config": {**TEXT, "rope_parameters": TURNS}, "vision_config": DEEP},
    "mistral3": {
        "text_config": {**TEXT, "model_type": "mistral", "sliding_window": 9},
        "vision_config": {**TOWER, "model_type": "pixtral", "head_dim": 16},
    },
    "cohere2_vision": {
        "text_config": {**TEXT, **WINDOWED, "model_type": "cohere2", "logit_scale": 0.5},
        "vision_config": {**TOWER, "model_type": "siglip_vision_model"},
    },
    "voxtral": {
        "text_config": {**TEXT, "model_type": "llama"},
        "audio_config": {**SOUND, "model_type": "voxtral_encoder"},
    },
    "blip-2": {"text_config": OPT, "vision_config": TOWER, "qformer_config": {**TOWER, "encoder_hidden_size": 32}},
}
RUN_SLOWLY: dict[str, dict[str, Any]] = {
    "llava": {
        "text_config": {**TEXT, "model_type": "llama"},
        "vision_config": {**TOWER, "model_type": "clip_vision_model"},
    },
    "qwen2_5_vl": {"text_config": {**TEXT, "rope_parameters": SECTIONS}, "vision_config": {**DEEP, "depth": 2}},
    "glm4v": {
        "text_config": {**TEXT, "rope_parameters": {**SECTIONS, "partial_rotary_factor": 1.0}},
        "vision_config": {**DEEP, "depth": 2},
    },
    "gemma3": {"text_config": {**TEXT, **WINDOWED}, "vision_config": {**TOWER, "model_type": "siglip_vision_model"}},
    "kimi_k25": {
        "text_config": {**TEXT, **LATENT, "model_type": "deepseek_v3"},
        "vision_config": {**TOWER, "pos_emb_height": 4, "pos_emb_width": 4},
        "image_token_id": 258,
        "video_token_id": 258,
    },
    "ernie4_5_vl_moe": {
        "text_config": {
            **SHAPE,
            "moe_intermediate_size": [32, 24],
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_num_shared_experts": 1,
            "mlp_layer_types": ["dense", "sparse"],
            "rope_parameters": {**SECTIONS, "mrope_section": [3, 3, 2]},
        },
        "vision_config": {**DEEP, "depth": 2},
    },
    "git": {**SHAPE, "num_key_value_heads": 4, "vision_config": TOWER},
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "an encoder": ("florence2", {}, "has an encoder"),
    "a thinker": ("qwen2_5_omni", {}, "part of a thinker"),
    "blocks of tokens": ("diffusion_gemma", {}, "block diffusion"),
    "layers with a state": (
        "lfm2_vl",
        {"text_config": {"model_type": "lfm2", "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}},
        "layers of type conv",
    ),
    "a forward that needs a picture": (
        "idefics",
        {**SHAPE, "num_key_value_heads": 4, "vision_config": {}},
        "on text alone.*pixel_values",
    ),
}


def wrapper_class(family: str) -> Any:
    from transformers.models.auto import modeling_auto as auto

    names = {**auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES, **auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES}
    return getattr(transformers, names[family])


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """A folder with a tiny checkpoint of a wrapper, as transformers saves it, and transformers' own model."""
    made: dict[str, tuple[Path, Any]] = {}

    def make(family: str) -> tuple[Path, Any]:
        if family not in made:
            torch.manual_seed(0)
            config = CONFIG_MAPPING[family](**{**RUN, **RUN_SLOWLY}[family])
            model = wrapper_class(family)._from_config(config, dtype=torch.float32, attn_implementation="eager")
            draw_weights(model, 0.2)
            folder = tmp_path_factory.mktemp(family)
            model.save_pretrained(folder)
            made[family] = folder, model.eval()
        return made[family]

    return make


def logits_of(model: Any) -> Callable[..., torch.Tensor]:
    """transformers' logits of text alone; those of the model inside where the wrapper asks for more."""
    asked = getattr(model, "language_model", model)

    def logits(ids: Any) -> torch.Tensor:
        with torch.inference_mode():
            return asked(input_ids=torch.tensor([ids]), use_cache=False).logits[0]

    return logits


def check(family, wrapped, catalog):
    folder, model = wrapped(family)
    with torch.inference_mode():
        found = check_model(engine_config(folder, "transformers"), catalog, reference=logits_of(model))
    print(f"\n{family:16}" + "  ".join(f"{c.schedule} {c.error:.1e}" for c in found))


@pytest.mark.parametrize("family", RUN)
def test_text_of_a_wrapper_equals_transformers(family, wrapped, catalog):
    check(family, wrapped, catalog)


@pytest.mark.slow
@pytest.mark.parametrize("family", RUN_SLOWLY)
def test_text_of_a_further_wrapper_equals_transformers(family, wrapped, catalog):
    check(family, wrapped, catalog)


def save_by_modules(folder: Path, model: Any, path: Path) -> Path:
    """The checkpoint of ``folder`` under the names of the modules, not those that transformers saves."""
    path.mkdir()
    save_file({name: each.clone() for name, each in model.state_dict().items()}, path / "model.safetensors")
    (path / "config.json").write_text((folder / "config.json").read_text())
    return path


@pytest.mark.parametrize("family", ["mistral3", "qwen3_vl"])
def test_names_of_modules_are_read_as_those_that_transformers_saves(family, wrapped, catalog, tmp_path):
    folder, model = wrapped(family)
    found = []
    for path in (folder, save_by_modules(folder, model, tmp_path / "own")):
        sequences = Sequences(load(engine_config(path, "transformers"), catalog))
        sequences.add(0, range(5, 25))
        found.append(sequences.step([(0, 20)])[0])
    assert torch.equal(*found)


def test_adapters_name_the_modules_of_a_wrapper(wrapped, catalog, tmp_path):
    """Whichever names the checkpoint has, and their logits are those of merged weights."""
    folder, model = wrapped("mistral3")
    own = save_by_modules(folder, model, tmp_path / "own")
    modules = [name for name in linear_layers(own) if "language_model" in name]
    adapter = write_adapter(tmp_path / "adapter", own, modules, spread=0.1)
    found = []
    for path in (folder, own):
        declared, store = with_slots(engine_config(path, "transformers"), catalog, 1)
        load_adapter(store, 1, adapter)
        store.enter(0, 1)
        sequences = Sequences(declared)
        sequences.adapters = {0: 0}
        found.append(run_schedule(sequences, SCHEDULES["mixed"])[0])
    merged = Sequences(load(engine_config(merge(tmp_path / "merged", own, adapter), "transformers"), catalog))
    expected = run_schedule(merged, SCHEDULES["whole"])[0]
    assert torch.equal(*found)
    assert compare_logits("mixed", {0: found[0]}, {0: expected}).error <= 1e-4


def test_two_ranks_share_the_text_of_a_wrapper(wrapped, catalog, on_two_ranks):
    folder, model = wrapped("mistral3")
    ids = list(range(5, 45))

    def run(declared):
        sequences = Sequences(declared)
        sequences.add(0, ids)
        return torch.cat([sequences.step([(0, count)])[0] for count in (17, 1, 22)])

    ranks = on_two_ranks(engine_config(folder, "transformers"), catalog, run)
    whole = sum(each.numel() for each in declare(engine_config(folder, "transformers"), catalog).model.parameters())
    expected = logits_of(model)(ids)
    for declared, found in ranks:
        assert sum(each.numel() for each in declared.model.parameters()) < 0.75 * whole
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("family", ["mistral3", "voxtral"])
def test_towers_are_not_declared_and_named_in_the_log(family, wrapped, catalog, caplog):
    folder, model = wrapped(family)
    with caplog.at_level(logging.INFO, "lsv_models.generic.model"):
        declared = declare(engine_config(folder, "transformers"), catalog)
    tower = "vision_tower" if family == "mistral3" else "audio_tower"
    (line,) = [record.getMessage() for record in caplog.records if "unread" in record.getMessage()]
    assert f"model.{tower}" in line
    assert "model.multi_modal_projector" in line
    pieces = {piece.name for slot in declared.slots for piece in slot.pieces}
    assert all("language_model" in name or name == "lm_head.weight" for name in pieces)
    text = sum(each.numel() for name, each in model.named_parameters() if "language_model" in name or "lm_head" in name)
    assert sum(each.numel() for each in declared.model.parameters()) == text


def test_experts_for_images_are_not_declared(wrapped, catalog, caplog):
    folder, _ = wrapped("ernie4_5_vl_moe")
    with caplog.at_level(logging.INFO, "lsv_models.generic.model"):
        declared = declare(engine_config(folder, "transformers"), catalog)
    assert "model.language_model.layers.*.mlp.vision_moe" in caplog.text
    experts = {piece.name for slot in declared.slots for piece in slot.pieces if ".experts." in piece.name}
    assert {int(name.split(".experts.")[1].split(".")[0]) for name in experts} == {0, 1, 2, 3}
    stored = load_file(folder / "model.safetensors")
    assert {int(name.split(".experts.")[1].split(".")[0]) for name in stored if ".experts." in name} == set(range(8))


def test_a_tower_whose_package_is_missing_stays_unread(wrapped, catalog, monkeypatch):
    from transformers import AutoModel

    from lsv_models.generic import proof

    monkeypatch.setattr(proof, "_proved", {})
    make = AutoModel.from_config

    def lack(config, **given):
        if config.model_type == "pixtral":
            raise ImportError("timm is not installed")
        return make(config, **given)

    folder, model = wrapped("mistral3")
    monkeypatch.setattr(AutoModel, "from_config", lack)
    with torch.inference_mode():
        check_model(engine_config(folder, "transformers"), catalog, reference=logits_of(model))


def test_a_language_model_whose_package_is_missing_is_refused(wrapped, catalog, monkeypatch):
    from transformers import AutoModel

    from lsv_models.generic import proof

    def lack(config, **given):
        raise ImportError("mamba is not installed")

    monkeypatch.setattr(proof, "_proved", {})
    monkeypatch.setattr(AutoModel, "from_config", lack)
    with pytest.raises(CheckpointError, match="mamba is not installed"):
        declare(engine_config(wrapped("mistral3")[0], "transformers"), catalog)


@pytest.mark.parametrize(
    ("strange", "refused"),
    [
        ("model.vision_tower.of_another_release.weight", False),
        ("model.language_model.layers.0.self_attn.q_norm.weight", True),
        ("model.vision_tower_2.weight", True),
    ],
)
def test_tensors_besides_those_of_towers_are_refused(strange, refused, wrapped, catalog, tmp_path):
    folder, _ = wrapped("mistral3")
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, strange: torch.ones(16)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    config = engine_config(tmp_path, "transformers")
    if refused:
        with pytest.raises(CheckpointError, match=f"{strange} is unexpected"):
            load(config, catalog)
    else:
        load(config, catalog)


@pytest.mark.parametrize("case", REFUSED)
def test_wrapper_is_refused_by_name(case, tmp_path, catalog):
    family, keys, reason = REFUSED[case]
    parsed = CONFIG_MAPPING[family](**keys)
    name = wrapper_class(family).__name__
    (tmp_path / "config.json").write_text(json.dumps({**parsed.to_dict(), "architectures": [name]}))
    with pytest.raises(CheckpointError, match=f"{name}.*{reason}"):
        declare(engine_config(tmp_path, "transformers"), catalog)


def test_what_a_wrapper_does_beside_its_language_model_is_found(wrapped, catalog, monkeypatch):
    from transformers.models.mistral3.modeling_mistral3 import Mistral3Model

    from lsv_models.generic import proof

    monkeypatch.setattr(proof, "_proved", {})
    plain = Mistral3Model.forward

    def forward(self, *args, **kwargs):
        out = plain(self, *args, **kwargs)
        out.last_hidden_state = out.last_hidden_state * torch.arange(1.0, 65.0)
        return out

    folder, _ = wrapped("mistral3")
    monkeypatch.setattr(Mistral3Model, "forward", forward)
    with pytest.raises(CheckpointError, match="computes something else"):
        declare(engine_config(folder, "transformers"), catalog)


def test_small_copies_keep_the_share_of_a_head_that_is_rotated():
    from lsv_models.generic.miniature import shrink

    parts = {"head_dim": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64}
    small = shrink({**parts, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}})
    assert small["head_dim"] * small["rope_parameters"]["partial_rotary_factor"] == small["qk_rope_head_dim"] == 8


def test_small_copies_keep_what_wrappers_say_of_towers():
    from lsv_models.generic.miniature import shrink

    turns = {"rope_type": "default", "mrope_section": [22, 22, 20]}
    small = shrink({"head_dim": 128, "num_attention_heads": 32, "rope_parameters": turns, "hidden_size": 4096})
    assert small["rope_parameters"]["mrope_section"] == [2, 2, 4]
    tower = {"model_type": "clip_vision_model", "hidden_size": 1024, "num_hidden_layers": 24}
    assert shrink({"vision_config": tower}) == {"vision_config": {**tower, "num_hidden_layers": 2}}


@pytest.mark.parametrize("spelling", ["", "model."])
def test_weight_formats_name_layers_by_either_spelling(spelling, wrapped, tmp_path):
    """A config.json may name the layers that stay plain as it names its tensors, or by the modules."""
    folder, _ = wrapped("mistral3")
    plain = {
        "": "language_model.model.layers.0.mlp.down_proj", "model.": "model.language_model.layers.0.mlp.down_proj",
    }[spelling]  # fmt: skip
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    group = {"targets": ["Linear"], "weights": weights, "format": "int-quantized"}
    stored = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"0": group}}
    config = json.loads((folder / "config.json").read_text())
    stored |= {"ignore": [plain, "lm_head", "re:.*vision_tower.*"]}
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": stored}))
    given = engine_config(tmp_path, "transformers", quantization="compressed-tensors")
    declared = declare(given, catalog_of(plugin, quant))
    named = {slot.pieces[0].name for slot in declared.slots if slot.pieces[0].name.endswith("down_proj.weight_scale")}
    assert named == {"model.language_model.layers.1.mlp.down_proj.weight_scale"}


@pytest.mark.parametrize("quantization", [None, "fp8", "sym_int4"])
def test_engines_serve_the_text_of_a_wrapper(quantization, wrapped):
    """In chunks, beside others, with prefixes that are there already; with weight formats not far off."""
    folder, model = wrapped("mistral3")
    shared = list(range(40, 72))
    prompts = [[*shared, *range(5, 5 + count)] for count in (3, 17, 30)]
    options: dict[str, Any] = {"skip_tokenizer_init": True, "max_model_len": 128, "model_impl": "transformers"}
    schedule: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 24, "block_size": 16, "max_logprobs": -1}
    shown = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, detokenize=False, logprobs=-1)
    with LLM(str(folder), dtype="float32", quantization=quantization, **options, **schedule) as llm:
        for _ in range(2):
            answers = llm.generate([{"prompt_token_ids": ids} for ids in prompts], shown, use_tqdm=False)
        assert llm.stats.prefix_hits_total > 0
    gaps = []
    for ids, answer in zip(prompts, answers, strict=True):
        made = answer.outputs[0]
        expected = torch.log_softmax(logits_of(model)([*ids, *made.token_ids])[len(ids) - 1 : -1], -1)
        rows = [[row[token].logprob for token in range(expected.shape[-1])] for row in made.logprobs]
        gaps.append(float((torch.tensor(rows) - expected).abs().mean()))
    if quantization is None:
        assert max(gaps) < 1e-4
    else:
        assert 1e-4 < max(gaps) < 2.0


@pytest.mark.parametrize(
    ("architecture", "kind"), [("Emu3ForCausalLM", "emu3_text_model"), ("MllamaForCausalLM", "mllama_text_model")]
)
def test_text_halves_that_transformers_maps_to_no_class_are_built(architecture: str, kind: str) -> None:
    parsed = parse({**CONFIG_MAPPING[kind]().to_dict(), "architectures": [architecture]}, 64)
    with torch.device("meta"):
        assert type(make_model(parsed, torch.float32, "eager")).__name__ == architecture
