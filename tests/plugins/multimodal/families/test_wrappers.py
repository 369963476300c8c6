"""Images of wrappers of transformers: what transformers' own processor and model make of them, through lsv."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from safetensors.torch import load_file, save_file

from lsv import LLM, SamplingParams
from lsv.media.items import Prepared
from lsv.media.processor import Audio, Image
from lsv.request.prompt import Prompt
from lsv.resolve.locate import read_config
from lsv_base.errors import BadRequest, CheckpointError, LsvError
from lsv_doctor.models.trials.images.cases import CASES
from lsv_doctor.models.trials.images.checkpoints import wrapper_class, write
from lsv_models.generic.refusal import Refused
from lsv_models.generic.seeing import Embedded, StandIn, WrapperEncoder
from lsv_models.seeing_offers import SEEING, WITH_TORCHVISION
from lsv_multimodal.families.wrapper.images import WrapperProcessor
from lsv_multimodal.families.wrapper.places import make_placement
from lsv_multimodal.placement import place
from lsv_testing.model import engine_config, load
from lsv_testing.shown import check_shown, encode
from suite.server import Server

from .conftest import Engine, as_link
from .wrappers import Reference

OFFER = "transformers_seeing"
QUICK = ("idefics3", "mistral3", "llava_onevision", "qwen3_5", "glm46v", "gemma4")
FAMILIES = [family if family in QUICK else pytest.param(family, marks=pytest.mark.slow) for family in CASES]
TEXTS = {0: "see {} here", 1: "{}{}?", 2: "nothing to see", 3: "wide: {}"}
SIZES: dict[int, list[tuple[int, int]]] = {0: [(60, 40)], 1: [(28, 28), (33, 90)], 2: [], 3: [(120, 31)]}
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """The folder of a tiny checkpoint of a family, and transformers' own model of it."""
    made: dict[str, tuple[Path, Any]] = {}

    def make(family: str) -> tuple[Path, Any]:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            made[family] = folder, write(family, folder)
        return made[family]

    return make


class Prompts:
    """Prompts of a family with pictures, as lsv places them, and beside them transformers' own."""

    def __init__(self, family: str, folder: Path, model: Any) -> None:
        case, config = CASES[family], read_config(folder, {})
        self.mark = case.shows or case.tokens[0]
        self.reference = Reference(folder, model)
        self.processor, self.placement = WrapperProcessor(folder, config), make_placement(folder, config)

    def place(self, number: int, text: str, pictures: Sequence[Image]) -> Prompt:
        text = text.replace("{}", self.mark)
        theirs = self.reference.read(number, text, pictures)["input_ids"][0].tolist()
        ids = self.reference.processor.tokenizer(text)["input_ids"]
        placed = place(ids, [self._prepare(picture) for picture in pictures], self.placement)
        assert list(placed.ids) == theirs
        return placed

    def _prepare(self, picture: Image) -> Prepared:
        name = repr(picture.pixels.shape).encode() + picture.pixels.tobytes()
        return Prepared("image", name[-32:], self.processor.process(picture, {}))

    def place_all(self, picture: Callable[..., Image]) -> dict[int, Prompt]:
        pictures = {n: [picture(*size, seed) for seed, size in enumerate(sizes)] for n, sizes in SIZES.items()}
        return {number: self.place(number, text, pictures[number]) for number, text in TEXTS.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_tokens_equal_transformers(family: str, wrapped: Any, catalog: Any, picture: Any) -> None:
    if wrapper_class(family) in WITH_TORCHVISION:
        pytest.importorskip("torchvision")
    folder, model = wrapped(family)
    prompts = Prompts(family, folder, model)
    shown = prompts.place_all(picture)
    check_shown(engine_config(folder, OFFER, max_len=2048), catalog, shown, prompts.reference.logits)


def test_every_family_of_the_table_is_checked() -> None:
    checked = {wrapper_class(family) for family in CASES if family != "pixtral"}
    assert sorted((*SEEING, *WITH_TORCHVISION)) == sorted(checked)


@pytest.mark.parametrize("family", [*QUICK, "pixtral"])
def test_answers_equal_generate_in_any_company(family: str, wrapped: Any, picture: Any, engine: Any) -> None:
    folder, model = wrapped(family)
    prompts = Prompts(family, folder, model)
    first, second = picture(60, 40), picture(33, 90, 1)
    texts: list[tuple[str, list[Image]]] = [
        ("see {} here", [first]), ("only text", []), ("{} and {}?", [first, second]),
        ("see {} here, it is blue. And {}?", [first, second]),
    ]  # fmt: skip
    placed = [prompts.place(number, *one) for number, one in enumerate(texts)]
    expected = [prompts.reference.generate(number, 6) for number in range(len(texts))]
    own: Engine = engine(folder, max_model_len=512, max_num_batched_tokens=64)
    for _ in range(2):  # the second time with prefix hits
        assert own.answer(placed, 6) == expected
    assert [own.answer([one], 6)[0] for one in placed] == expected
    assert own.llm.stats.prefix_hits_total > 0 or family == "qwen3_5", "these prompts are shorter than a page of states"


def test_an_image_is_encoded_once(wrapped: Any, picture: Any, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, model = wrapped("idefics3")
    prompts = Prompts("idefics3", folder, model)
    encoded: list[int] = []
    advance = WrapperEncoder.advance

    def count(self: WrapperEncoder, state: Any, part: int) -> Any:
        encoded.append(part)
        return advance(self, state, part)

    monkeypatch.setattr(WrapperEncoder, "advance", count)
    same = picture(60, 40)
    own: Engine = engine(folder, max_model_len=512)
    own.answer([prompts.place(0, "see {} here", [same]), prompts.place(1, "{} and {}?", [same, same])], 4)
    own.answer([prompts.place(2, "what is {}", [same])], 4)
    assert len(encoded) == 1


def test_a_chat_shows_images_in_any_turn(wrapped: Any, picture: Any) -> None:
    folder, model = wrapped("mistral3")
    first, second = picture(60, 40), picture(33, 90, 1)
    prompts = Prompts("mistral3", folder, model)
    prompts.place(0, "user: a{}\nassistant: b\nuser: {}c\nassistant: ", [first, second])
    links = [{"type": "image_url", "image_url": {"url": as_link(one)}} for one in (first, second)]
    chat = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, links[0]]},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": [links[1], {"type": "text", "text": "c"}]},
    ]
    with LLM(str(folder), dtype="float32", max_model_len=512) as llm:
        (answer,) = llm.chat(chat, GREEDY)
    assert list(answer.prompt_token_ids) == prompts.reference.inputs[0]["input_ids"][0].tolist()
    assert list(answer.outputs[0].token_ids) == prompts.reference.generate(0, 6)


def test_text_is_served_without_the_files_of_a_processor(wrapped: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(wrapped("idefics3")[0], tmp_path / "copy")
    for file in folder.glob("*processor*.json"):
        file.unlink()
    with LLM(str(folder), dtype="float32", max_model_len=64) as llm:
        (answer,) = llm.generate(["see"], GREEDY, use_tqdm=False)
        assert len(answer.outputs[0].token_ids) == 6
        with pytest.raises(LsvError, match="takes text only: only the language model of Idefics3"):
            llm.generate([{"prompt": "<image>", "multi_modal_data": {"image": np.zeros((9, 9, 3), np.uint8)}}], GREEDY)


@pytest.mark.parametrize("family", ["idefics3", "qwen3_5"])
def test_embeddings_instead_of_an_image_are_refused(family: str, wrapped: Any, engine: Any) -> None:
    folder, _ = wrapped(family)
    case, rows = CASES[family], np.zeros((4, 64), np.float32)
    own: Engine = engine(folder, max_model_len=128)
    with pytest.raises(BadRequest, match="takes images, and no embeddings instead"):
        own.ask({"prompt": case.shows or case.tokens[0], "multi_modal_data": {"image": rows}}, 1)


def test_the_log_says_what_images_go_through(wrapped: Any, catalog: Any, caplog: Any) -> None:
    with caplog.at_level(logging.INFO, "lsv_models.generic.seeing"):
        load(engine_config(wrapped("idefics3")[0], OFFER), catalog)
    assert "Idefics3ForConditionalGeneration: images go through transformers' own tower" in caplog.text


def test_text_is_served_where_images_see_themselves(wrapped: Any, catalog: Any, picture: Any, caplog: Any) -> None:
    folder, model = wrapped("gemma4")
    (media,) = Prompts("gemma4", folder, model).place(0, "{}", [picture(40, 40)]).media
    mutual = {"text_config": {"use_bidirectional_attention": "vision"}}
    declared = load(engine_config(folder, OFFER, overrides=mutual), catalog)
    assert "images are refused, text is served: tokens of an image see one another" in caplog.text
    with pytest.raises(BadRequest, match="tokens of an image see one another"):
        encode(declared.model.encoder, media.inputs)


def spoil_tower(folder: Path, copy: Path, form: str) -> Path:
    """A copy of a checkpoint whose tower lacks a weight or, with ``form`` fp8, has it in a form that nothing reads."""
    shutil.copytree(folder, copy)
    stored = load_file(copy / "model.safetensors")
    (name, *_) = (name for name in stored if ("vi" in name and "mlp" in name) or "feed_forward" in name)
    weight = stored.pop(name)
    if form == "fp8":
        stored |= {name: weight.to(torch.float8_e4m3fn), f"{name}_scale_inv": torch.ones(1)}
    save_file(stored, copy / "model.safetensors")
    return copy


@pytest.mark.parametrize("family", ["mistral3", "glm46v"])
@pytest.mark.parametrize(("form", "why"), [("fp8", "is float8_e4m3fn"), ("missing", "is missing")])
def test_text_is_served_where_a_tower_is_stored_in_another_form(
    form: str, why: str, family: str, wrapped: Any, catalog: Any, picture: Any, tmp_path: Path, caplog: Any
) -> None:
    folder, model = wrapped(family)
    prompts = Prompts(family, folder, model)
    placed, silent = prompts.place(0, "{}", [picture(40, 40)]), prompts.place(1, "nothing to see", [])
    config = engine_config(spoil_tower(folder, tmp_path / "other", form), OFFER)
    check_shown(config, catalog, {1: silent}, prompts.reference.logits)
    assert "images are refused, text is served: the checkpoint does not fit the model" in caplog.text
    assert why in caplog.text
    with pytest.raises(BadRequest, match=why):
        encode(load(config, catalog).model.encoder, placed.media[0].inputs)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"attention_mask": torch.zeros(1, 1, 3, 3)}, "see one another"),
        ({"attention_mask": {"full": torch.ones(1, 1, 3, 3, dtype=torch.bool)}}, "see one another"),
        ({"deepstack_visual_embeds": [torch.zeros(3, 4)]}, "takes deepstack_visual_embeds beside the rows"),
    ],
)
def test_what_rows_alone_do_not_say_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(Refused, match=why):
        StandIn(torch.nn.Identity())(inputs_embeds=torch.zeros(1, 3, 4), **given)


def test_a_causal_mask_is_what_language_models_have() -> None:
    mask = torch.full((1, 1, 3, 3), -torch.inf).triu(1)
    with pytest.raises(Embedded) as found:
        StandIn(torch.nn.Identity())(inputs_embeds=torch.zeros(1, 3, 4), attention_mask=mask)
    assert found.value.rows.shape == (1, 3, 4)


def test_a_processor_that_replaces_another_token_is_refused(wrapped: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(wrapped("idefics3")[0], tmp_path / "copy")
    config = {**read_config(folder, {}), "image_token_id": 260}
    with pytest.raises(
        CheckpointError, match="an image is <fake_token_around_image>, but the processor replaces <image>"
    ):
        WrapperProcessor(folder, config)


def test_a_processor_has_no_options_and_takes_no_videos(wrapped: Any, picture: Any) -> None:
    folder, _ = wrapped("idefics3")
    processor = WrapperProcessor(folder, read_config(folder, {}))
    with pytest.raises(BadRequest, match="no option max_pixels"):
        processor.process(picture(20, 20), {"max_pixels": 4})
    with pytest.raises(BadRequest, match="takes images, no audio and no video"):
        processor.process(Audio(np.zeros(9, np.float32), 16000), {})


@pytest.mark.slow
def test_two_ranks_see_the_same(wrapped: Any, picture: Any, engine: Any) -> None:
    folder, model = wrapped("idefics3")
    prompts = Prompts("idefics3", folder, model)
    placed = prompts.place(0, "see {} here", [picture(60, 40)])
    own: Engine = engine(folder, max_model_len=512, tensor_parallel_size=2)
    assert own.answer([placed], 6) == [prompts.reference.generate(0, 6)]


@pytest.mark.slow
def test_a_server_answers_about_an_image(wrapped: Any, picture: Any, tmp_path: Path) -> None:
    folder, model = wrapped("smolvlm")
    prompts, one = Prompts("smolvlm", folder, model), picture(60, 40)
    prompts.place(0, "user: {}What?\nassistant: ", [one])
    server = Server(tmp_path / "log", str(folder), "--served-model-name", "m", "--dtype", "float32")
    try:
        server.wait_until_ready()
        content: Any = [{"type": "image_url", "image_url": {"url": as_link(one)}}, {"type": "text", "text": "What?"}]
        found = server.client().chat.completions.create(
            model="m", messages=[{"role": "user", "content": content}], temperature=0, max_tokens=6,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )  # fmt: skip
    finally:
        server.stop()
    assert found.usage is not None
    assert found.usage.prompt_tokens == prompts.reference.inputs[0]["input_ids"].shape[1]
    expected = prompts.reference.processor.tokenizer.decode(prompts.reference.generate(0, 6), skip_special_tokens=True)
    assert found.choices[0].message.content == expected


def test_a_server_refuses_an_image_that_its_tower_cannot_read(wrapped: Any, picture: Any, tmp_path: Path) -> None:
    folder = spoil_tower(wrapped("mistral3")[0], tmp_path / "other", "missing")
    server = Server(tmp_path / "log", str(folder), "--served-model-name", "m", "--dtype", "float32")
    try:
        server.wait_until_ready()
        chat = server.client().chat.completions
        image: Any = {"type": "image_url", "image_url": {"url": as_link(picture(60, 40))}}
        for _ in range(2):
            with pytest.raises(openai.BadRequestError, match="this model can't read the image: the checkpoint does"):
                chat.create(model="m", messages=[{"role": "user", "content": [image]}], max_tokens=6)
        said = chat.create(model="m", messages=[{"role": "user", "content": "What?"}], max_tokens=6)
    finally:
        server.stop()
    assert said.usage is not None
    assert said.usage.completion_tokens > 0
