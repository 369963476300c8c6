"""Gemma 3 with images gives transformers' inputs, embeddings, logits and tokens, however its prompts are cut."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lsv import SamplingParams
from lsv_base.errors import BadRequest, CheckpointError
from lsv_multimodal.families.siglip import Gemma3Placement, Gemma3Processor
from lsv_multimodal.placement import spell
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import engine_config, load, stored_bytes
from lsv_testing.shown import seen_pixels

from .conftest import PicturesReference

SOFT = 261
OFFER = "gemma3_seeing"
CASES: dict[str, dict[str, Any]] = {
    "a window in the first layer, none in the second": {
        "text_config": {"layer_types": ["sliding_attention", "full_attention"]}
    },
    "an image as long as the window": {
        "text_config": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16},
        "mm_tokens_per_image": 16,
    },
}  # fmt: skip
TEXTS = {
    0: "see <start_of_image> here", 1: "<start_of_image><start_of_image>?", 2: "nothing to see",
    3: "a long beginning, so that windows end within it: <start_of_image>",
}  # fmt: skip
SIZES = {0: [(60, 40)], 1: [(28, 28), (33, 90)], 2: [], 3: [(120, 31)]}


class Reference(PicturesReference):
    placeholder = SOFT

    def __init__(self, folder: Path) -> None:
        import transformers

        config = json.loads((folder / "config.json").read_text())
        processor = transformers.Gemma3Processor(
            image_processor=transformers.AutoImageProcessor.from_pretrained(folder, backend="pil"),
            tokenizer=transformers.PreTrainedTokenizerFast.from_pretrained(
                folder,
                extra_special_tokens={
                    "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>",
                },
            ),
            image_seq_length=config["mm_tokens_per_image"],
        )  # fmt: skip
        super().__init__(folder, "Gemma3ForConditionalGeneration", processor)

    @torch.inference_mode()
    def logits(self, number: int, ids: Sequence[int]) -> torch.Tensor:
        """Of the prompt and what came after it, where no token belongs to an image."""
        given = self.inputs[number]
        kinds = torch.zeros(1, len(ids), dtype=torch.int64)
        prompt = given["input_ids"].shape[1]
        kinds[:, :prompt] = (given["input_ids"] == SOFT).long()[:, : len(ids)]
        whole = torch.tensor([list(ids)])
        if (whole[:, prompt:] == SOFT).any():  # a placeholder that was generated is a token like any other
            x = self.model.get_input_embeddings()(whole)
            x[0, kinds[0] == 1] = self.embeddings(number)
            return self.model(inputs_embeds=x, token_type_ids=kinds, use_cache=False).logits[0]  # type: ignore[no-any-return]
        found = self.model(
            input_ids=whole, pixel_values=given.get("pixel_values"), token_type_ids=kinds, use_cache=False
        )  # fmt: skip
        return found.logits[0]  # type: ignore[no-any-return]


@pytest.mark.row("F-664")
@pytest.mark.parametrize("case", CASES)
def test_inputs_embeddings_logits_and_tokens_equal_transformers(
    case: str, checkpoint: Callable[..., Path], catalog: Any, shower: Any, picture: Any
) -> None:
    folder = checkpoint("gemma3", **CASES[case])
    reference, shows, shown = Reference(folder), shower(folder, "gemma3"), {}
    for number, text in TEXTS.items():
        pictures = [picture(*size, seed) for seed, size in enumerate(SIZES[number])]
        theirs = reference.read(number, text, pictures)
        ids = reference.processor.tokenizer.encode(spell(text, shows.placement))
        shown[number] = placed = shows.place(ids, pictures)
        assert list(placed.ids) == theirs["input_ids"][0].tolist()
        if pictures:
            ours = np.concatenate([seen_pixels(media) for media in placed.media])
            np.testing.assert_allclose(ours, theirs["pixel_values"].numpy(), atol=1e-6)
    reference.check(engine_config(folder, OFFER), catalog, shown)


LONG = CASES["an image as long as the window"]


@pytest.mark.row("F-664")
def test_engine_in_chunks_with_prefixes_and_preemption(
    checkpoint: Callable[..., Path], shower: Any, picture: Any, engine: Any
) -> None:
    folder = checkpoint("gemma3", **LONG)
    reference, shows = Reference(folder), shower(folder, "gemma3")
    pictures = [picture(60, 40), picture(33, 90, 1)]
    texts = {"see <start_of_image> here": 1, "<start_of_image><start_of_image>?": 2, "nothing to see": 0}
    prompts, expected = [], []
    for number, (text, count) in enumerate(texts.items()):
        reference.read(number, text, pictures[:count])
        prompts.append(
            shows.place(reference.processor.tokenizer.encode(spell(text, shows.placement)), pictures[:count])
        )
        ids = list(prompts[-1].ids)
        for _ in range(12):
            ids.append(int(reference.logits(number, ids)[-1].argmax()))
        expected.append(ids[-12:])
    plain = engine(folder, enable_prefix_caching=False)
    long = plain.answer(prompts, 40)
    assert [answer[:12] for answer in long] == expected
    # 26 tokens of a step would cut prompts within their images, and blocks of 16 do: prefixes that are found end there
    roomy = engine(folder, max_num_batched_tokens=26, max_model_len=None, block_size=16)
    for _ in range(2):
        assert roomy.answer(prompts, 12) == expected
    assert roomy.llm.stats.prefix_hits_total > 0
    shown = {"image": [one.pixels for one in pictures]}
    asked = {"prompt": "<start_of_image><start_of_image>?", "multi_modal_data": shown}
    assert roomy.ask(asked, 12) == expected[1]
    for running in (roomy, plain):
        (answer,) = running.llm.generate(asked, SamplingParams(temperature=0.0, max_tokens=1, logprobs=5))
        found = {token: one.logprob for token, one in answer.outputs[0].logprobs[0].items()}
        theirs = reference.logits(1, prompts[1].ids)[-1].log_softmax(-1)
        assert found == pytest.approx({token: float(theirs[token]) for token in found}, abs=1e-4)
    tight = engine(folder, max_num_batched_tokens=20, num_gpu_blocks_override=10, max_model_len=96, block_size=16)
    assert tight.answer(prompts, 40) == long
    assert tight.answer(prompts[::-1], 40) == long[::-1]
    assert tight.llm.stats.preemptions_total > 0


def test_an_image_that_no_step_can_hold_is_refused(checkpoint: Callable[..., Path], picture: Any, engine: Any) -> None:
    small = engine(checkpoint("gemma3", **LONG), max_num_batched_tokens=15, max_num_seqs=4)
    with pytest.raises(BadRequest, match="an item has 16 tokens, which see one another, and a step takes 15"):
        small.ask({"prompt": "<start_of_image>", "multi_modal_data": {"image": picture(9, 9).pixels}}, 1)
    assert len(small.ask({"prompt": "x" * 40}, 2)) == 2


def test_names_of_all_ages_are_read(checkpoint: Callable[..., Path], catalog: Any, tmp_path: Path) -> None:
    folder = checkpoint("gemma3")
    expected = load(engine_config(folder, OFFER), catalog).model.state_dict()
    stored = load_file(folder / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    plain = {name.replace("model.language_model.", "language_model.model."): value for name, value in stored.items()}
    plain = {name.removeprefix("model."): value for name, value in plain.items()}
    towers = {name.replace("vision_tower.", "vision_tower.vision_model."): value for name, value in plain.items()}
    later = {
        name.replace("language_model.model.", "model.language_model.")
        if name.startswith("language_model.")
        else f"model.{name}": value
        for name, value in towers.items()
    }
    for names in (plain, towers, later):
        save_file(names, tmp_path / "model.safetensors")
        found = load(engine_config(tmp_path, OFFER), catalog).model.state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


# google/gemma-3-12b-it, but for keys without a meaning
GEMMA3_12B = {
    "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "eoi_token_index": 256000,
    "eos_token_id": [1, 106], "image_token_index": 262144, "initializer_range": 0.02, "mm_tokens_per_image": 256,
    "model_type": "gemma3", "torch_dtype": "bfloat16",
    "text_config": {
        "hidden_size": 3840, "intermediate_size": 15360, "model_type": "gemma3_text", "num_attention_heads": 16,
        "num_hidden_layers": 48, "num_key_value_heads": 8, "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    },
    "vision_config": {
        "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model",
        "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False,
    },
}  # fmt: skip


@pytest.mark.row("F-664")
def test_a_published_config_is_understood(catalog: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GEMMA3_12B))
    declared = declare(engine_config(tmp_path, OFFER), catalog)
    assert (declared.vocab_size, declared.model.encoder.parts) == (262208, 27)
    assert stored_bytes(declared) == 4 * 12_187_325_040
    # text alone where somebody takes the tower away
    alone = declare(engine_config(tmp_path, OFFER, overrides={"vision_config": None}), catalog)
    assert alone.model.encoder is None
    assert not any(layer.mutual for layer in alone.layers)


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"mm_tokens_per_image": 5}, "mm_tokens_per_image must be a square whose root divides the 4 patches"),
        ({"mm_tokens_per_image": 9}, "mm_tokens_per_image must be a square"),
        ({"vision_config": {"model_type": "clip_vision_model"}}, "SigLIP's, got 4"),
        ({"text_config": {"sliding_window": 3}}, "an image has 4 tokens, more than sliding_window=3"),
        ({"image_token_index": 320}, "image_token_index is 320, but the vocabulary ends at 320"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False"),
        ({"projection_layers": 2}, "keys SeeingGemma3 does not know .*projection_layers"),
    ],
)
def test_what_it_can_not_follow_is_refused(
    overrides: dict[str, Any], why: str, checkpoint: Callable[..., Path], catalog: Any
) -> None:
    with pytest.raises(CheckpointError, match=why):
        declare(engine_config(checkpoint("gemma3"), OFFER, overrides=overrides), catalog)


def test_pictures_and_options_it_can_not_take(
    checkpoint: Callable[..., Path], shower: Any, picture: Any, clip: Any, tmp_path: Path
) -> None:
    folder = checkpoint("gemma3")
    shows = shower(folder, "gemma3")
    with pytest.raises(BadRequest, match="900 x 4 is too thin"):
        shows.place([SOFT], [picture(900, 4)])
    with pytest.raises(BadRequest, match="no option do_pan_and_scan"):
        shows.place([SOFT], [picture(30, 40)], do_pan_and_scan=True)
    with pytest.raises(BadRequest, match="no video"):
        shows.place([SOFT], [clip(4, 30, 40)])
    assert shows.processor.resized(4000, 300) == (28, 28)
    config = json.loads((folder / "config.json").read_text())
    with pytest.raises(CheckpointError, match="makes images of 28 x 28, the tower takes 35 x 35"):
        Gemma3Processor(folder, {**config, "vision_config": {**config["vision_config"], "image_size": 35}})
    with pytest.raises(BadRequest, match="takes text alone"):
        Gemma3Processor(folder, {**config, "vision_config": None}).process(picture(30, 40), {})


def test_an_image_that_is_spelt_out_stays() -> None:
    placement = Gemma3Placement(Path("nowhere"), {})
    once = placement.spell("a<start_of_image>b")
    assert once == "a\n\n<start_of_image><image_soft_token><end_of_image>\n\nb" == placement.spell(once)
