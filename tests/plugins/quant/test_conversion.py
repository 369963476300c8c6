"""``lsv quantize``: the folder it writes answers like the format it is in, and a text makes it better."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import lsv_models.plugin
import lsv_quant.plugin
from lsv import LLM, SamplingParams
from lsv.cli.main import main
from lsv.offers import QuantizerOffer
from lsv_quant.conversion import convert, prepared
from lsv_quant.conversion.compensation import CompensatedInt4
from lsv_quant.conversion.folder import fresh_folder
from lsv_quant.conversion.formats import WRITABLE
from lsv_quant.conversion.observation import observe
from lsv_quant.conversion.schemes import make_int4, name_targets
from lsv_quant.rounding import RoundInt4, from_nibbles, in_groups
from lsv_runtime.weights.quantizer import Linear
from lsv_testing.catalog import catalog_of
from lsv_testing.model import engine_config, load
from lsv_testing.quantised import answer as answer_by_kernels
from lsv_testing.tiny import tiny, write_tokenizer
from suite.caches import own_cache

SHAPE = {"hidden_size": 128}


answer = partial(answer_by_kernels, reference_ops=True)


def quantize(model: Path, folder: Path, format: str = "sym_int4", *more: str) -> Path:
    """The weights as plain torch rounds them, as ``answer`` does while loading."""
    return quantize_by_kernels(model, folder, format, "--reference-ops", *more)


def quantize_by_kernels(model: Path, folder: Path, format: str, *more: str) -> Path:
    """Kernels that round may differ from plain torch in the last bit of a scale."""
    assert main(["quantize", str(model), str(folder), "-q", format, "--dtype", "float32", *more]) == 0
    return folder


def with_tokenizer(family: str, folder: Path, **shape: int) -> Path:
    path = tiny(family, folder, **SHAPE, **shape)
    write_tokenizer(path)
    return path


def write_text(folder: Path, words: int = 900) -> Path:
    file = folder / "text.txt"
    file.write_text(" ".join(f"word {number * number % 97}" for number in range(words)))
    return file


@pytest.mark.parametrize(
    ("family", "format"),
    [
        ("llama", "sym_int4"),
        ("llama", "int8_weight_only"),
        ("qwen3_moe", "sym_int4_g32"),
        ("phi3", "sym_int4_g32"),
        ("gpt_neox", "sym_int4"),
        ("gpt2", "sym_int4"),
        ("gemma2", "sym_int4_g128"),
        ("llama", "int8"),
        ("qwen3_moe", "int8"),
        ("gpt2", "mxfp4"),
        ("gpt_neox", "int8"),
        ("llama", "fp8"),
        ("phi3", "fp8"),
        ("llama", "fp8_tensor"),
        ("gemma2", "mxfp4"),
        ("qwen3_moe", "mxfp4"),
        ("qwen3_moe", "experts_int8"),
    ],
)
def test_a_folder_answers_like_the_format_made_while_loading(tmp_path: Path, family: str, format: str) -> None:
    plain = tiny(family, tmp_path / "plain", **SHAPE)
    written = quantize(plain, tmp_path / "written", format)
    config = json.loads((written / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
    assert answer(written) == answer(plain, quantization=format)


@pytest.mark.parametrize("format", WRITABLE)
@pytest.mark.parametrize("tied", [True, False])
def test_a_folder_holds_the_weights_of_the_format_made_while_loading(tmp_path: Path, format: str, tied: bool) -> None:
    """To the bit, and computed alike: by the same ops, over the same groups."""
    plain = tiny("qwen3_moe", tmp_path / "plain", hidden_size=288, tie_word_embeddings=tied)
    written = layers(quantize(plain, tmp_path / "written", format), "compressed-tensors")
    made = layers(plain, format)
    assert written.keys() == made.keys()
    assert any(layer.format != "plain" for layer in made.values())
    for name, layer in made.items():
        assert written[name].spec() == layer.spec(), name
        held = dict(layer.named_buffers())
        found = dict(written[name].named_buffers())
        assert found.keys() == held.keys()
        assert all(torch.equal(found[key].nan_to_num(), held[key].nan_to_num()) for key in held), name


@pytest.mark.parametrize("format", ["int8", "fp8", "mxfp4", "sym_int4"])
def test_the_platform_finds_the_probabilities_that_it_finds_in_the_format(tmp_path: Path, format: str) -> None:
    """To the bit: its kernels round for the folder as they do while loading."""
    plain = tiny("llama", tmp_path / "plain", hidden_size=192, intermediate_size=288)
    written = quantize_by_kernels(plain, tmp_path / "written", format)
    assert probabilities(written) == probabilities(plain, quantization=format)


def probabilities(folder: Path, **options: Any) -> list[float]:
    """The logarithms for each token of a prompt."""
    with LLM(str(folder), dtype="float32", skip_tokenizer_init=True, **options) as llm:
        params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
        (output,) = llm.generate([{"prompt_token_ids": list(range(20, 60))}], params)
    return [each.logprob for position in output.prompt_logprobs or () if position for each in position.values()]


def layers(folder: Path, quantization: str) -> dict[str, Linear]:
    config = engine_config(folder, "qwen3_moe", quantization=quantization)
    modules = load(config, catalog_of(lsv_models.plugin, lsv_quant.plugin)).model.named_modules()
    return {name: module for name, module in modules if isinstance(module, Linear)}


@pytest.mark.parametrize("offer", [offer for offer in lsv_quant.plugin.lsv_quantizers() if offer.online])
def test_a_format_is_written_or_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], offer: QuantizerOffer
) -> None:
    plain = tiny("qwen3_moe", tmp_path / "plain", **SHAPE)
    status = main(["quantize", str(plain), str(tmp_path / "out"), "-q", offer.name])
    problem = capsys.readouterr().err
    assert (status == 0) == (offer.name in WRITABLE)
    if status:
        reason = "whole zero points" if offer.name.startswith("asym") else "the values of a table"
        assert f"{offer.name} can't be written: " in problem
        assert reason in problem
        assert f"These formats can be written: {', '.join(WRITABLE)}" in problem


@pytest.mark.parametrize("format", ["int8", "int8_weight_only", "fp8", "fp8_tensor"])
def test_weights_that_files_hold_as_inputs_by_outputs_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], format: str
) -> None:
    """No reader could see which way codes lie in a square tensor that has the name of the plain one."""
    plain = tiny("gpt2", tmp_path / "plain", **SHAPE)
    assert main(["quantize", str(plain), str(tmp_path / "out"), "-q", format]) != 0
    assert f"{format} can't be written for GPT2LMHeadModel, whose files hold" in capsys.readouterr().err


def test_the_help_lists_what_can_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", "--help"]) == 0
    assert set(WRITABLE) <= set(re.findall(r"\w+", capsys.readouterr().out))


def test_a_quantised_checkpoint_is_not_quantised_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = quantize(tiny("llama", tmp_path / "plain", **SHAPE), tmp_path / "written", "int8")
    assert main(["quantize", str(written), str(tmp_path / "out"), "-q", "compressed-tensors"]) != 0
    assert f"{written} is quantised already, as compressed-tensors: name the plain model" in capsys.readouterr().err


def test_int8_says_which_activations_share_a_scale(tmp_path: Path) -> None:
    plain = tiny("llama", tmp_path / "plain", hidden_size=128, intermediate_size=288)
    config = json.loads((quantize(plain, tmp_path / "written", "int8") / "config.json").read_text())
    groups = config["quantization_config"]["config_groups"].values()
    found = {group["input_activations"].get("group_size"): group["targets"] for group in groups}
    assert found[128] == [r"re:model\.layers\.\d+\.mlp\.down_proj$"]
    assert "lm_head" in found[None], "128 inputs are a whole row"
    strategies = {group["input_activations"]["strategy"] for group in groups}
    assert strategies == {"group", "token"}


def test_a_tied_table_is_written_once(tmp_path: Path) -> None:
    plain = tiny("llama", tmp_path / "plain", **SHAPE, tie_word_embeddings=True)
    written = quantize(plain, tmp_path / "written")
    tensors = load_file(written / "model.safetensors")
    assert tensors["model.embed_tokens.weight"].dtype == torch.int8
    assert "lm_head.weight" not in tensors
    assert answer(written) == answer(plain, quantization="sym_int4")


def test_layers_that_are_left_out_stay_as_they_are(tmp_path: Path) -> None:
    plain = tiny("llama", tmp_path / "plain", **SHAPE)
    written = quantize(plain, tmp_path / "written", "sym_int4", "--quantization-ignore", "mlp.down_proj")
    tensors = load_file(written / "model.safetensors")
    kept = "model.layers.1.mlp.down_proj.weight"
    assert torch.equal(tensors[kept], load_file(plain / "model.safetensors")[kept])
    assert answer(written) == answer(plain, quantization="sym_int4", quantization_ignore=["mlp.down_proj"])


@pytest.mark.two_ranks
@pytest.mark.parametrize(
    ("family", "more"), [("llama", {}), ("mistral", {}), ("qwen3_moe", {"moe_intermediate_size": 64})]
)
def test_two_ranks_read_what_was_fitted(tmp_path: Path, family: str, more: dict[str, int]) -> None:
    plain = with_tokenizer(family, tmp_path / "plain", head_dim=32, intermediate_size=128, **more)
    text = write_text(tmp_path)
    written = quantize(plain, tmp_path / "written", "sym_int4_g32", "--quantization-calibration", str(text))
    assert answer_by_kernels(written) == answer_by_kernels(written, tensor_parallel_size=2)


@pytest.mark.two_ranks
@pytest.mark.parametrize("format", ["int8", "mxfp4"])
def test_two_ranks_read_what_was_written(tmp_path: Path, format: str) -> None:
    """Their shares of the inputs are whole groups."""
    plain = tiny("llama", tmp_path / "plain", hidden_size=256, intermediate_size=512)
    written = quantize(plain, tmp_path / "written", format)
    assert answer_by_kernels(written) == answer_by_kernels(written, tensor_parallel_size=2)


def test_compensation_brings_results_nearer_to_the_plain_ones() -> None:
    generator = torch.Generator().manual_seed(1)
    mixing = torch.randn(192, 192, generator=generator) * torch.logspace(0, -2, 192)
    inputs = torch.randn(2000, 192, generator=generator) @ mixing.T
    weight = torch.randn(96, 192, generator=generator) * 0.02
    seen, unseen = inputs[:1000], inputs[1000:]
    errors = []
    for rounding in (RoundInt4(torch.float32, 64), CompensatedInt4(torch.float32, 64, seen.T @ seen)):
        nibbles, scales = torch.empty(96, 96, dtype=torch.uint8), torch.empty(96, 3)
        rounding(weight, nibbles, scales)
        rounded = (in_groups(from_nibbles(nibbles, 192), 64) * scales[..., None]).flatten(-2)
        errors.append(float((unseen @ (rounded - weight).T).square().mean()))
        exact = torch.equal(scales, scales.bfloat16().float())
    assert exact, "files hold scales in bfloat16"
    assert errors[1] < 0.25 * errors[0]


def test_a_text_is_read_by_all_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device of cpu leaves torch one thread, since its own kernels compute elsewhere."""
    used = []

    def watched(*given: Any) -> dict[str, torch.Tensor]:
        used.append(torch.get_num_threads())
        return observe(*given)

    monkeypatch.setattr(convert, "observe", watched)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        plain = with_tokenizer("llama", tmp_path / "plain", num_hidden_layers=1)
        quantize(plain, tmp_path / "written", "sym_int4", "--quantization-calibration", str(write_text(tmp_path)))
        assert used == [3]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("moment", [torch.zeros(40, 40), torch.ones(40, 40), torch.full((40, 40), 1e30)])
def test_moments_that_say_little_still_give_codes(moment: torch.Tensor) -> None:
    weight = torch.randn(8, 40)
    weight[3] = 0
    nibbles, scales = torch.empty(8, 20, dtype=torch.uint8), torch.empty(8, 2)
    CompensatedInt4(torch.float32, 32, moment)(weight, nibbles, scales)
    rounded = (in_groups(from_nibbles(nibbles, 40), 32) * scales[..., None]).flatten(-2)[:, :40]
    assert not rounded[3].any()
    assert (rounded - weight).abs().max() < 0.6


def test_a_pattern_names_layers_of_one_scheme_only() -> None:
    small, large = make_int4(32), make_int4(64)
    found = name_targets({"a.0.up": small, "a.1.up": small, "a.0.down": small, "a.1.down": large, "head": large})
    assert found == {small: [r"re:a\.\d+\.up$", "a.0.down"], large: ["a.1.down", "head"]}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "name the weight format with --quantization; these can be written: int8, int8_weight_only"),
        (("-q", "int8_weight_only", "--quantization-calibration", "text.txt"), "can't be fitted to a text"),
        (("-q", "int8", "--quantization-calibration", "text.txt"), "int8 can't be fitted to a text, only sym_int4"),
        (("-q", "fp8", "--quantization-calibration", "text.txt"), "fp8 can't be fitted to a text, only sym_int4"),
        (("-q", "sym_int4", "--quantization-calibration", "short.txt"), "at least 512 are needed"),
        (("-q", "sym_int4", "--quantization-calibration", "none.txt"), "can't be read: No such file"),
        (("-q", "sym_int4", "--quantization-calibration", "bytes.txt"), "not text in UTF-8"),
    ],
)
def test_what_is_refused_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    problem: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with_tokenizer("llama", tmp_path / "plain")
    write_text(tmp_path)
    (tmp_path / "short.txt").write_text("too little")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    assert main(["quantize", "plain", "out", *arguments]) != 0
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*")), "nothing is left"


def test_a_model_whose_numbers_break_is_not_fitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, text = with_tokenizer("llama", tmp_path / "plain"), write_text(tmp_path)
    file = plain / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if name.endswith("up_proj.weight"):
            tensor.mul_(1e30)
    save_file(tensors, file)
    arguments = ["-q", "sym_int4", "--dtype", "float32", "--quantization-calibration", str(text)]
    assert main(["quantize", str(plain), str(tmp_path / "out"), *arguments]) != 0
    assert "is not finite; try another --dtype" in capsys.readouterr().err


def test_a_folder_with_files_is_not_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = tiny("llama", tmp_path / "plain", **SHAPE)
    assert main(["quantize", str(plain), str(plain), "-q", "sym_int4"]) != 0
    assert "exists and is not an empty folder" in capsys.readouterr().err


def test_two_servers_may_fit_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def be_slower(job: prepared.Job) -> None:
        with fresh_folder(Path(job.folder)) as folder:
            (folder / "config.json").touch()
            (Path(job.folder)).mkdir()
            (Path(job.folder) / "config.json").write_text("of the faster one")

    monkeypatch.setenv("LSV_CACHE_ROOT", str(own_cache(tmp_path / "cache")))
    monkeypatch.setattr(prepared, "_convert_elsewhere", be_slower)
    config = engine_config(tiny("llama", tmp_path / "plain"), "llama", quantization="sym_int4")
    folder = Path(prepared.prepare(config, str(write_text(tmp_path))))
    assert (folder / "config.json").read_text() == "of the faster one"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_server_fits_the_weights_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LSV_CACHE_ROOT", str(own_cache(tmp_path / "cache")))
    plain, text = with_tokenizer("llama", tmp_path / "plain"), write_text(tmp_path)
    caplog.set_level("INFO", "lsv_quant")
    options = {"quantization": "sym_int4", "quantization_calibration": str(text)}
    first = answer(plain, **options)
    assert "fitting layers" in caplog.text
    caplog.clear()
    assert answer(plain, **options) == first
    assert "fitting layers" not in caplog.text
    written = quantize(plain, tmp_path / "written", "sym_int4", "--quantization-calibration", str(text))
    assert answer(written) == first
    assert first != answer(plain, quantization="sym_int4"), "the text changes nothing"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"quantization": "nf4"}, "nf4 can't be fitted to a text; these can: sym_int4"),
        ({}, "quantization_calibration needs --quantization"),
    ],
)
def test_a_server_refuses_what_can_not_be_fitted(tmp_path: Path, options: dict[str, str], problem: str) -> None:
    plain, text = tiny("llama", tmp_path / "plain"), write_text(tmp_path)
    with pytest.raises(Exception, match=problem):
        answer(plain, quantization_calibration=str(text), **options)
