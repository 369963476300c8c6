"""The language model of a published wrapper is the language model by itself: the same answers, whatever is on."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lsv import LLM, LoRARequest, SamplingParams
from lsv.cli.main import main
from lsv_base.errors import CheckpointError, LsvError
from lsv_testing.adapters import write_adapter
from lsv_testing.tiny import SHAPE, draw_weights

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1)
PROMPTS = [[5, 9, 200, 31, 77], [8] * 3 + list(range(40, 75))]
ODD = {**SHAPE, "hidden_size": 64, "head_dim": 16, "num_attention_heads": 6, "num_key_value_heads": 2}
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2,
}  # fmt: skip
TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 1, "patch_size": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_5": {
        "text_config": {**ODD, **DELTA},
        "vision_config": {
            "hidden_size": 32, "depth": 1, "num_heads": 4, "intermediate_size": 48, "out_hidden_size": 64,
        },
    },
    "qwen3_5_moe": {
        "text_config": {
            **ODD, **DELTA, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
        },
        "vision_config": {
            "hidden_size": 32, "depth": 1, "num_heads": 4, "intermediate_size": 48, "out_hidden_size": 64,
        },
    },
    "mistral3": {
        "text_config": {"model_type": "mistral", **ODD},
        "vision_config": {"model_type": "pixtral", "image_size": 16, "head_dim": 8, **TOWER},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def wrapper(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's published form, and beside it, as ``text``, its language model by itself."""
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            made[family] = write(family, tmp_path_factory.mktemp(family))
        return made[family]

    return make


def write(family: str, folder: Path) -> Path:
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

    torch.manual_seed(0)
    config = CONFIG_MAPPING[family](**FAMILIES[family], tie_word_embeddings=False)
    whole: Any = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    draw_weights(whole, 0.2)
    whole.save_pretrained(folder / "whole")
    text = AutoModelForCausalLM.from_config(config.text_config, dtype=torch.float32)
    text.model.load_state_dict(whole.model.language_model.state_dict())
    text.lm_head.load_state_dict(whole.lm_head.state_dict())
    text.save_pretrained(folder / "text")
    return folder


def answer(folder: Path, lora: Path | None = None, **options: Any) -> list[tuple[tuple[int, ...], list[float]]]:
    adapters = {"enable_lora": True} if lora else {}
    with LLM(
        str(folder), dtype="float32", max_model_len=64, max_num_batched_tokens=16, num_gpu_blocks_override=40,
        skip_tokenizer_init=True, block_size=16, **adapters, **options,
    ) as llm:  # fmt: skip
        request = LoRARequest("a", 1, str(lora)) if lora else None
        found = [
            one.checked().outputs[0]
            for _ in range(2)  # the second time with prefix hits
            for one in llm.generate(prompt_token_ids=PROMPTS, sampling_params=GREEDY, lora_request=request)
        ]
    return [(tuple(one.token_ids), [next(iter(each.values())).logprob for each in one.logprobs]) for one in found]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"quantization": "sym_int4"}, id="sym_int4"),
        pytest.param({"quantization": "fp8"}, id="fp8", marks=pytest.mark.slow),
        pytest.param({"tensor_parallel_size": 2}, id="two ranks", marks=pytest.mark.slow),
        pytest.param({"tensor_parallel_size": 2, "quantization": "int8"}, id="both", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_it_answers_as_the_language_model_alone(family, options, wrapper):
    folder = wrapper(family)
    found, expected = (answer(folder / name, **options) for name in ("whole", "text"))
    assert found == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_it_answers_as_transformers_does(family, wrapper):
    from transformers import AutoModelForImageTextToText

    folder = wrapper(family) / "whole"
    reference: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    for (tokens, _), prompt in zip(answer(folder), PROMPTS, strict=False):
        text = list(prompt)
        with torch.inference_mode():
            for _ in tokens:
                text.append(int(reference(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1].argmax()))
        assert tuple(text[len(prompt) :]) == tokens


@pytest.mark.parametrize("prefix", ["model.language_model", "language_model.model"])
def test_adapters_fit_under_either_name(prefix, wrapper, tmp_path):
    folder = wrapper("mistral3")
    modules = [f"model.layers.{number}.{name}" for number in (0, 1) for name in ("self_attn.q_proj", "mlp.up_proj")]
    own = write_adapter(tmp_path / "own", folder / "text", modules, spread=0.3)
    theirs = shutil.copytree(own, tmp_path / "theirs")
    file = theirs / "adapter_model.safetensors"
    tensors = {name.replace("model.layers", f"{prefix}.layers"): tensor for name, tensor in load_file(file).items()}
    save_file(tensors, file)
    found, expected = answer(folder / "whole", theirs), answer(folder / "text", own)
    assert found == expected != answer(folder / "text")


@pytest.mark.parametrize("prefix", ["vision_tower", "model.vision_tower"])
def test_weights_of_an_adapter_for_towers_are_left_out(prefix, wrapper, tmp_path):
    """No answer to text depends on them; they may go by the files' names, or those of transformers' modules."""
    folder = wrapper("mistral3")
    own = write_adapter(tmp_path / "own", folder / "text", ["model.layers.1.mlp.up_proj"], spread=0.3)
    both = shutil.copytree(own, tmp_path / "both")
    tensors = load_file(both / "adapter_model.safetensors")
    rank = next(len(tensor) for name, tensor in tensors.items() if "lora_A" in name)
    place = f"base_model.model.{prefix}.transformer.layers.0.feed_forward.up_proj"
    towers = {f"{place}.lora_A.weight": torch.ones(rank, 32), f"{place}.lora_B.weight": torch.ones(48, rank)}
    save_file({**tensors, **towers}, both / "adapter_model.safetensors")
    assert answer(folder / "whole", both) == answer(folder / "text", own)
    save_file(towers, both / "adapter_model.safetensors")
    with pytest.raises(LsvError, match="are not layers of this model"):
        answer(folder / "whole", both)


def test_layers_that_a_quantised_wrapper_leaves_out_go_by_its_names(wrapper, tmp_path):
    """A compressed-tensors config names layers as the wrapper does, and may name towers too."""
    folder, ignored = wrapper("qwen3_5"), "model.layers.0.mlp.down_proj"
    theirs = ignored.replace("model.", "model.language_model.")
    group = {
        "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
        "input_activations": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True},
        "targets": ["Linear"],
    }
    given = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"0": group}}
    for name, leave in (("whole", [theirs, "re:.*visual.*", "lm_head"]), ("text", [ignored, "lm_head"])):
        quantise(folder / name, tmp_path / name, {**given, "ignore": leave}, set(leave))
    found, expected = (answer(tmp_path / name) for name in ("whole", "text"))
    assert found == expected


def quantise(source: Path, target: Path, config: dict[str, Any], ignored: set[str]) -> None:
    target.mkdir()
    keys = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**keys, "quantization_config": config}))
    made: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        module = name.removesuffix(".weight")
        is_linear = module.endswith("_proj") or ".in_proj" in module
        if not is_linear or module in ignored or "visual" in name:
            made[name] = tensor
            continue
        scale = tensor.abs().amax(1, keepdim=True) / 127
        made |= {name: (tensor / scale).round().to(torch.int8), f"{module}.weight_scale": scale}
    save_file(made, target / "model.safetensors")


@pytest.mark.parametrize(
    ("given", "option"),
    [
        pytest.param({"rms_norm_eps": 0.1}, {}, id="a key"),
        pytest.param({"rope_theta": 50.0}, {"rope_theta": 50.0}, id="a base"),
        pytest.param({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, {}, id="a rule"),
        pytest.param({"sliding_window": 8}, {}, id="a key that config.json leaves out"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_hf_overrides_change_the_language_model(given, option, nested, wrapper, tmp_path):
    """Its keys may stand inside of its object or outside; ``option`` says the same."""
    folder = shutil.copytree(wrapper("mistral3") / "whole", tmp_path / "whole")
    keys = json.loads((folder / "config.json").read_text())
    del keys["text_config"]["sliding_window"]
    (folder / "config.json").write_text(json.dumps(keys))
    text = wrapper("mistral3") / "text"
    expected = answer(text, **option or {"hf_overrides": given})
    assert answer(folder, hf_overrides={"text_config": given} if nested else given) == expected != answer(text)
    assert answer(text, hf_overrides=given) == expected


def test_an_override_that_the_language_model_does_not_know_is_refused(wrapper):
    with pytest.raises(CheckpointError, match="Mistral does not know and that could change results: norm_scale"):
        answer(wrapper("mistral3") / "whole", hf_overrides={"norm_scale": 2})


@pytest.mark.parametrize(
    ("family", "format"), [("qwen3_5", "sym_int4"), ("mistral3", "int8"), ("qwen3_5_moe", "sym_int4")]
)
def test_a_folder_of_lsv_quantize_answers_as_the_format_made_while_loading(family, format, wrapper, tmp_path):
    """Its towers stay as they are, and config.json names layers as its files do."""
    folder = wrapper(family)
    for name in ("whole", "text"):
        given = [str(folder / name), str(tmp_path / name), "-q", format, "--dtype", "float32", "--reference-ops"]
        assert main(["quantize", *given]) == 0
    expected = answer(folder / "text", quantization=format, reference_ops=True)
    found = [answer(tmp_path / name, reference_ops=True) for name in ("whole", "text")]
    assert found == [expected, expected]
    stored, written = (load_file(each / "whole" / "model.safetensors") for each in (folder, tmp_path))
    towers = [name for name in stored if "language_model" not in name and "lm_head" not in name]
    assert towers
    assert all(torch.equal(stored[name], written[name]) for name in towers)
    places, own = (
        {name.partition(".layers.")[0] for name in tensors if ".layers." in name and name not in towers}
        for tensors in (stored, written)
    )
    assert own == places
    groups = json.loads((tmp_path / "whole" / "config.json").read_text())["quantization_config"]["config_groups"]
    layers = [target for group in groups.values() for target in group["targets"] if "layers" in target]
    assert layers
    assert all(target.startswith(f"re:{re.escape(place)}") for target in layers for place in places)


def test_a_prompt_with_an_image_is_refused_with_the_reason(wrapper):
    with (
        LLM(str(wrapper("qwen3_5") / "whole"), dtype="float32", max_model_len=64, skip_tokenizer_init=True) as llm,
        pytest.raises(LsvError, match="only the language model of Qwen3_5ForConditionalGeneration is served"),
    ):
        llm.generate({"prompt_token_ids": [5], "multi_modal_data": {"image": b"x"}}, GREEDY)


def test_a_tensor_that_the_language_model_lacks_is_refused(wrapper, tmp_path):
    folder = shutil.copytree(wrapper("qwen3_5") / "whole", tmp_path / "whole")
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "model.language_model.layers.0.gate.weight": torch.ones(2)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"layers\.0\.gate\.weight"):
        LLM(str(folder), dtype="float32", max_model_len=64, skip_tokenizer_init=True)
