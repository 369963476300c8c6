"""What lsv-demo is shown: things to see and hear with true answers, cut as the tower takes them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from demo_training.senses import clips, first_sight, held_out, pictures, shapes, sounds
from demo_training.senses.conversations import KINDS, draw
from lsv.media.items import Prepared
from lsv.media.processor import Audio, Image, Video
from lsv.request.media import Modality
from lsv.resolve.locate import read_config
from lsv_base.errors import BadRequest
from lsv_demo import CHECKPOINT
from lsv_demo import plugin as demo
from lsv_demo.processor import DemoPlacement, DemoProcessor
from lsv_demo.senses.inputs import GREY, RATE, SIDE, cut
from lsv_multimodal.placement import place
from lsv_testing.catalog import catalog_of
from lsv_testing.model import engine_config
from lsv_testing.shown import check_shown


def pixels_like(picture: Image, colour: str) -> int:
    """How many pixels are near a tint of the colour."""
    near = [np.abs(picture.pixels.astype(int) - level).max(-1) <= 30 for level in shapes.COLOURS[colour]]
    return int(np.logical_or.reduce(near).sum())


def test_answers_about_a_picture_say_what_is_in_it() -> None:
    rng = Random("single")
    seen = 0
    for _ in range(300):
        shown = pictures.picture(rng, 200)
        if shown.labels[-1] != 1:
            continue
        seen += 1
        colour, shape, field = shown.key.split()
        answers = {turn.skill: turn.answer for turn in shown.turns}
        assert answers["describe"] == f"{'An' if colour == 'orange' else 'A'} {colour} {shape} {where(int(field))}."
        assert pixels_like(shown.content, colour) > 100
        y, x = (values.mean() for values in np.nonzero(different(shown.content)))
        assert (int(y * 3 // 200), int(x * 3 // 200)) == divmod(int(field), 3)
    assert seen > 50


def where(field: int) -> str:
    return pictures.PLACES[field][1]


def different(picture: Image) -> np.ndarray:
    """Pixels that are not like the corner that is farthest from being covered: the background's."""
    pixels = picture.pixels.astype(int)
    ground = np.median(pixels.reshape(-1, 3), axis=0)
    return np.abs(pixels - ground).max(-1) > 40


def test_labels_count_what_the_key_lists() -> None:
    rng = Random("several")
    for _ in range(200):
        shown = pictures.picture(rng, 64)
        things = [tuple(part) for part in zip(*[iter(shown.key.split())] * 3, strict=True)]
        assert shown.labels[-1] == len(things)
        of_shape = shown.labels[9 : 9 + len(shapes.SHAPES)]
        assert list(of_shape) == [sum(shape == name for _, shape, _ in things) for name in shapes.SHAPES]
        asked = next(turn for turn in shown.turns if turn.skill == "count")
        assert str(len(things)) in asked.answer


def test_crossed_things_are_told_apart_by_shape_and_colour_together() -> None:
    rng, scenes = Random("crossed"), pictures.Scenes(most=4, single=0.0, crossed=1.0)
    for _ in range(60):
        listed = pictures.picture(rng, 48, scenes=scenes).key.split()
        things = list(zip(listed[::3], listed[1::3], strict=True))
        assert len(set(things)) == len(things) > 1
        assert all(len(set(names)) <= 2 for names in zip(*things, strict=True))


def test_a_sound_has_as_many_beeps_as_it_says_at_its_pitch() -> None:
    rng = Random("beeps")
    for _ in range(40):
        shown = sounds.sound(rng, RATE)
        samples = shown.content.samples
        count, pitch = shown.labels
        loud = np.abs(samples) > 0.25 * np.abs(samples).max()
        edges = np.flatnonzero(loud)
        assert 1 + int((np.diff(edges) > 0.07 * RATE).sum()) == count
        spectrum = np.abs(np.fft.rfft(samples))
        loudest = np.fft.rfftfreq(len(samples), 1 / RATE)[spectrum.argmax()]
        low, high = list(sounds.PITCHES.values())[pitch]
        assert low - 20 <= loudest <= high + 20


def test_a_clip_moves_the_way_it_says() -> None:
    rng = Random("ways")
    for _ in range(40):
        shown = clips.clip(rng, 96, 6)
        way = clips.WAYS[shown.key.split(" ")[2]] if "not at all" not in shown.key else (0, 0)
        centres = [[values.mean() for values in np.nonzero(different(Image(frame)))] for frame in shown.content.frames]
        for (y, x), (later_y, later_x) in pairwise(centres):
            assert (later_x - x) * way[0] >= -0.5
            assert (later_y - y) * way[1] >= -0.5
        moved = np.subtract(centres[-1], centres[0])
        assert np.allclose(np.sign(np.round(moved / 8)), way[::-1])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_held_out_was_not_trained_on(kind: Modality) -> None:
    trained = {draw(kind, "train", Random(f"a {seed}")).key for seed in range(150)}
    asked = {one.key for one in held_out.questions(8, 0) if held_out.SKILLS[one.skill] == kind}
    assert asked
    assert not trained & asked


def test_a_seed_gives_the_same_questions_again() -> None:
    assert held_out.questions(2, 1) == held_out.questions(2, 1)
    assert held_out.questions(2, 1) != held_out.questions(2, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_fit_their_aspects(kind: Modality) -> None:
    rng = Random("labels")
    for _ in range(50):
        labels = draw(kind, "train", rng).labels
        assert len(labels) == len(first_sight.ASPECTS[kind])
        assert all(-1 <= label < most for label, most in zip(labels, first_sight.ASPECTS[kind], strict=True))


@pytest.mark.parametrize(("height", "width"), [(96, 96), (300, 500), (31, 7), (1024, 1024)])
def test_a_picture_of_any_size_becomes_a_square(height: int, width: int) -> None:
    kind, square, count = cut(Image(np.full((height, width, 3), 200, np.uint8)))
    assert (kind, square.shape, count) == ("image", (SIDE, SIDE, 3), 9)
    across = round(width * SIDE / max(height, width))
    assert (square == 200).all(-1).any(0).sum() == across
    assert ((square == 200) | (square == GREY)).all()


@pytest.mark.parametrize(
    ("frames", "chosen"), [(1, [0, 0, 0, 0]), (2, [0, 0, 1, 1]), (4, [0, 1, 2, 3]), (9, [0, 3, 5, 8])]
)
def test_four_frames_of_a_clip_are_taken(frames: int, chosen: list[int]) -> None:
    pixels = np.arange(frames, dtype=np.uint8)[:, None, None, None] * np.ones((1, SIDE, SIDE, 3), np.uint8)
    kind, taken, count = cut(Video(pixels, np.arange(frames, dtype=np.float32)))
    assert (kind, taken[:, 0, 0, 0].tolist(), count) == ("video", chosen, 9)


def test_loudness_does_not_change_what_is_heard() -> None:
    samples = np.sin(np.arange(RATE, dtype=np.float32))
    loud, quiet = (cut(Audio(samples * level, RATE))[1] for level in (np.float32(0.9), np.float32(0.09)))
    assert loud.shape == (64, 32)
    assert np.abs(loud - quiet).max() < 1e-3
    assert loud.max() == pytest.approx(1)
    kind, silence, count = cut(Audio(np.zeros(0, np.float32), RATE))
    assert (kind, silence.shape, count) == ("audio", (16, 32), 1)


def test_a_sound_that_is_too_long_is_refused() -> None:
    assert cut(Audio(np.zeros(327_680, np.float32), RATE))[2] == 64
    with pytest.raises(BadRequest, match=r"21\.0 s long, and this model hears at most 20\.5 s"):
        cut(Audio(np.zeros(21 * RATE, np.float32), RATE))


def test_an_unknown_option_is_named() -> None:
    processor = DemoProcessor(CHECKPOINT, read_config(CHECKPOINT, {}))
    with pytest.raises(BadRequest, match="no option size"):
        processor.process(Image(np.zeros((4, 4, 3), np.uint8)), {"size": 3})


def test_lsv_computes_what_was_trained() -> None:
    from demo_training.checkpoint import load_text
    from demo_training.senses.checkpoint import load_tower

    language, tokenizer = load_text(CHECKPOINT)
    language, tower = language.float(), load_tower(CHECKPOINT, language.config.hidden_size).float()
    config = read_config(CHECKPOINT, {})
    processor, placement = DemoProcessor(CHECKPOINT, config), DemoPlacement(CHECKPOINT, config)
    shown, made = {}, {}
    for number, kinds in enumerate((("image",), ("audio", "image"), ("video", "audio", "video"), ())):
        contents = [(kind, draw(kind, "test", Random(f"{number} {index}"))) for index, kind in enumerate(kinds)]
        ids = tokenizer.encode("".join(f"What is <|{kind}|> here?" for kind in kinds) or "Nothing?").ids
        items = [
            Prepared(kind, bytes([number, index]) * 16, processor.process(item.content, {}))
            for index, (kind, item) in enumerate(contents)
        ]
        shown[number] = place(ids, items, placement)
        made[number] = [
            tower(kind, patches(item.processed, kind))[0] for (kind, _), item in zip(contents, items, strict=True)
        ]

    @torch.inference_mode()
    def reference(number: int, ids: object) -> torch.Tensor:
        x = language.get_input_embeddings()(torch.tensor(ids)).clone()
        for media, embeddings in zip(shown[number].media, made[number], strict=True):
            x[media.start : media.stop] = embeddings
        return language(inputs_embeds=x[None], use_cache=False).logits[0]

    check_shown(engine_config(CHECKPOINT, "lsv-demo"), catalog_of(demo), shown, reference, tolerance=1e-3)


def patches(processed: object, kind: str) -> torch.Tensor:
    array = processed.inputs[kind]
    return torch.frombuffer(bytearray(array.data), dtype=getattr(torch, array.dtype)).view(1, *array.shape)


def test_the_package_stays_small() -> None:
    folder = Path(demo.__file__).parent
    assert sum(file.stat().st_size for file in folder.rglob("*") if "__pycache__" not in file.parts) <= 16_000_000
    assert json.loads((CHECKPOINT / "config.json").read_text())["architectures"] == ["LsvDemoForConditionalGeneration"]
