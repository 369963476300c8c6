"""PaliGemma gives transformers' inputs, embeddings, logits and tokens; its prompts are read at once."""

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
from lsv_multimodal.families.siglip import PaliGemmaPlacement
from lsv_multimodal.placement import spell
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import engine_config, load, stored_bytes
from lsv_testing.shown import seen_pixels

from .conftest import PicturesReference

IMAGE = 259
OFFER = "paligemma"
TEXTS = {0: "caption en", 1: "<image><image>what has changed?", 2: "<image>"}
SIZES = {0: [(60, 40)], 1: [(28, 28), (33, 90)], 2: [(120, 31)]}


class Reference(PicturesReference):
    placeholder = IMAGE

    def __init__(self, folder: Path) -> None:
        import transformers

        images = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
        images.image_seq_length = 16
        processor = transformers.PaliGemmaProcessor(
            image_processor=images,
            tokenizer=transformers.PreTrainedTokenizerFast.from_pretrained(
                folder, extra_special_tokens={"image_token": "<image>"}
            ),
        )
        super().__init__(folder, "PaliGemmaForConditionalGeneration", processor)

    def process(self, text: str, images: list[Any]) -> Any:
        return self.processor(images=[images], text=[text], return_tensors="pt")

    @torch.inference_mode()
    def logits(self, number: int, ids: Sequence[int]) -> torch.Tensor:
        """Of the prompt, whose tokens see one another, and of what came after it."""
        given = self.inputs[number]
        prompt = given["input_ids"].shape[1]
        x = self.model.get_input_embeddings()(torch.tensor([list(ids)]))
        x[0, :prompt][given["input_ids"][0] == IMAGE] = self.embeddings(number)
        kinds = (torch.arange(len(ids)) >= prompt).long()[None]
        return self.model(inputs_embeds=x, token_type_ids=kinds, use_cache=False).logits[0]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def shown(checkpoint: Callable[..., Path], shower: Any, picture: Any) -> Any:
    """The checkpoint, transformers over it, and the prompts as both place them."""
    folder = checkpoint("paligemma")
    reference, shows, placed = Reference(folder), shower(folder, "paligemma"), {}
    for number, text in TEXTS.items():
        pictures = [picture(*size, seed) for seed, size in enumerate(SIZES[number])]
        reference.read(number, text, pictures)
        ids = reference.processor.tokenizer.encode(spell(text, shows.placement))
        placed[number] = shows.place(ids, pictures)
    return folder, reference, placed


@pytest.mark.row("F-650")
def test_inputs_embeddings_logits_and_tokens_equal_transformers(shown: Any, catalog: Any) -> None:
    folder, reference, placed = shown
    for number, prompt in placed.items():
        theirs = reference.inputs[number]
        assert list(prompt.ids) == theirs["input_ids"][0].tolist()
        ours = np.concatenate([seen_pixels(media) for media in prompt.media])
        np.testing.assert_allclose(ours, theirs["pixel_values"].numpy(), atol=1e-6)
    reference.check(engine_config(folder, OFFER), catalog, placed)


@pytest.mark.row("F-650")
def test_engine_reads_prompts_at_once_and_shares_whole_ones(shown: Any, picture: Any, engine: Any) -> None:
    folder, reference, placed = shown
    running = engine(folder, max_num_batched_tokens=64, block_size=16)
    params = SamplingParams(temperature=0.0, max_tokens=3, logprobs=5)
    # what both prompts begin with has other states in each of them
    asked = {
        number: {"image": [picture(*size, seed).pixels for seed, size in enumerate(SIZES[number])]} for number in TEXTS
    }
    for turn in range(2):
        for number, text in TEXTS.items():
            (answer,) = running.llm.generate({"prompt": text, "multi_modal_data": asked[number]}, params)
            ids = list(answer.prompt_token_ids)
            assert tuple(ids) == placed[number].ids, "nothing is framed twice"
            for token, found in zip(answer.outputs[0].token_ids, answer.outputs[0].logprobs, strict=True):
                theirs = reference.logits(number, ids)[-1].log_softmax(-1)
                assert {key: one.logprob for key, one in found.items()} == pytest.approx(
                    {key: float(theirs[key]) for key in found}, abs=1e-4
                )
                ids.append(token)
        assert bool(running.llm.stats.prefix_hits_total) == bool(turn), "only a prompt that is the same to its end"
    longer = {"prompt": TEXTS[0] + " and more", "multi_modal_data": asked[0]}
    hits = running.llm.stats.prefix_hits_total
    running.llm.generate(longer, params)
    assert running.llm.stats.prefix_hits_total == hits
    with pytest.raises(BadRequest, match=r"the prompt has .* tokens, which see one another, and a step takes 64"):
        running.llm.generate({"prompt": "x" * 60, "multi_modal_data": asked[0]}, params)


def test_names_of_all_ages_are_read(checkpoint: Callable[..., Path], catalog: Any, tmp_path: Path) -> None:
    folder = checkpoint("paligemma")
    expected = load(engine_config(folder, OFFER), catalog).model.state_dict()
    stored = load_file(folder / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    plain = {name.replace("model.language_model.", "language_model.model."): value for name, value in stored.items()}
    plain = {name.removeprefix("model."): value for name, value in plain.items()}
    towers = {name.replace("vision_tower.", "vision_tower.vision_model."): value for name, value in plain.items()}
    for names in (plain, towers):
        save_file(names, tmp_path / "model.safetensors")
        found = load(engine_config(tmp_path, OFFER), catalog).model.state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


# google/paligemma-3b-pt-224, but for keys without a meaning
PUBLISHED = {
    "_vocab_size": 257152, "architectures": ["PaliGemmaForConditionalGeneration"], "bos_token_id": 2,
    "eos_token_id": 1, "hidden_size": 2048, "ignore_index": -100, "image_token_index": 257152,
    "model_type": "paligemma", "pad_token_id": 0, "projection_dim": 2048, "torch_dtype": "float32",
    "text_config": {
        "hidden_size": 2048, "intermediate_size": 16384, "model_type": "gemma", "num_attention_heads": 8,
        "num_hidden_layers": 18, "num_image_tokens": 256, "num_key_value_heads": 1, "vocab_size": 257216,
    },
    "vision_config": {
        "hidden_size": 1152, "intermediate_size": 4304, "model_type": "siglip_vision_model", "num_attention_heads": 16,
        "num_hidden_layers": 27, "num_image_tokens": 256, "patch_size": 14, "projection_dim": 2048,
        "projector_hidden_act": "gelu_fast", "vision_use_head": False,
    },
}  # fmt: skip


@pytest.mark.row("F-650")
def test_a_published_config_is_understood(catalog: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    declared = declare(engine_config(tmp_path, OFFER), catalog)
    assert (declared.vocab_size, declared.model.encoder.parts) == (257216, 27)
    assert stored_bytes(declared) == 4 * 2_923_466_480


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"text_config": {"model_type": "gemma2"}}, "must be gemma, got 'gemma2'"),
        ({"vision_config": {"model_type": "clip_vision_model"}}, "has SigLIP's tower"),
        ({"projection_dim": 32}, "projection_dim is 32, and this architecture has 64"),
        ({"image_token_index": 320}, "image_token_index is 320, but the vocabulary ends at 320"),
        ({"projection_layers": 2}, "keys PaliGemma does not know .*projection_layers"),
    ],
)
def test_what_it_can_not_follow_is_refused(
    overrides: dict[str, Any], why: str, checkpoint: Callable[..., Path], catalog: Any
) -> None:
    with pytest.raises(CheckpointError, match=why):
        declare(engine_config(checkpoint("paligemma"), OFFER, overrides=overrides), catalog)


def test_texts_are_completed_once() -> None:
    placement = PaliGemmaPlacement(Path("nowhere"), {})
    assert placement.spell("caption en") == placement.spell("<image>caption en") == "<image><bos>caption en\n"
    assert placement.spell("<image>a<image> b") == "<image>a<image><bos> b\n"
    assert placement.spell("<image><bos>caption en\n") == "<image><bos>caption en\n"
