"""Questions about pictures, sounds and clips that were not trained on, as chats with files in them.

`python -m demo_training.senses.held_out FOLDER` writes such files, and prints what to ask about each and the right
answer.
"""

from __future__ import annotations

import argparse
import base64
import io
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from demo_training.senses.asked import Shown, Turn
from demo_training.senses.clips import clip
from demo_training.senses.pictures import AMONG_SEVERAL, KNOWN, picture
from demo_training.senses.sounds import sound
from lsv.media.processor import Audio, Image, Video
from lsv.request.media import Modality

SKILLS: dict[str, Modality] = {
    "colour": "image", "shape": "image", "count": "image", "position": "image",
    "beeps": "audio", "pitch": "audio", "motion": "video",
}  # fmt: skip
"""What is scored, and what it is asked about."""
PART_OF = {AMONG_SEVERAL: "position"}
"""Skills that are learnt on their own and scored with another one."""
FPS = 10


@dataclass(frozen=True)
class Asked:
    """A chat with its one right answer; ``key`` names what is shown."""

    skill: str
    messages: list[dict[str, Any]]
    answer: str
    key: str


def questions(each: int, seed: int) -> list[Asked]:
    """``each`` questions of every skill, each about something else."""
    asked: list[Asked] = []
    for skill in SKILLS:
        rng = Random(f"{skill} {seed}")
        for shown, turn in islice(_pairs(skill, rng), each):
            parts = [as_part(shown), {"type": "text", "text": turn.ask}]
            if rng.random() < 0.5:
                parts.reverse()
            asked.append(Asked(skill, [{"role": "user", "content": parts}], turn.answer, shown.key))
    return asked


def _pairs(skill: str, rng: Random) -> Iterator[tuple[Shown, Turn]]:
    """Something shown that was not trained on, and a question of the skill about it, again and again."""
    while True:
        shown = _draw(SKILLS[skill], rng)
        turns = [turn for turn in shown.turns if turn.skill == skill or PART_OF.get(turn.skill) == skill]
        if shown.split == "test" and turns:
            yield shown, rng.choice(turns)


def _draw(kind: Modality, rng: Random) -> Shown:
    """As people have them: pictures and clips of many sizes, sounds of other rates than the model's."""
    if kind == "image":
        side = rng.randint(120, 480)
        return picture(rng, side, round(side * rng.choice((1, 1, 1.33, 1.5, 0.75))), KNOWN)
    if kind == "audio":
        return sound(rng, rng.choice((16_000, 22_050, 44_100)))
    seconds = rng.choice((1.5, 2.0, 3.0))
    return clip(rng, rng.choice((128, 192, 256)), round(seconds * FPS), seconds)


def as_part(shown: Shown) -> dict[str, Any]:
    """An item as a part of a chat message, its file within."""
    form, data = as_file(shown)
    encoded = base64.b64encode(data).decode("ascii")
    if shown.modality == "audio":
        return {"type": "input_audio", "input_audio": {"data": encoded, "format": form}}
    kind = f"{shown.modality}_url"
    return {"type": kind, kind: {"url": f"data:{shown.modality}/{form};base64,{encoded}"}}


def as_file(shown: Shown) -> tuple[str, bytes]:
    """The name of a file format, and an item in it."""
    content = shown.content
    if isinstance(content, Image):
        return "png", png(content)
    return ("mp4", mp4(content)) if isinstance(content, Video) else ("wav", wav(content))


def png(content: Image) -> bytes:
    from PIL import Image as PilImage

    file = io.BytesIO()
    PilImage.fromarray(content.pixels).save(file, "PNG")
    return file.getvalue()


def wav(content: Audio) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(content.rate)
        out.writeframes((content.samples * 32767).astype("<i2").tobytes())
    return file.getvalue()


def mp4(content: Video) -> bytes:
    import av

    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        stream = out.add_stream("mpeg4", rate=FPS)
        stream.height, stream.width = content.frames.shape[1:3]
        stream.pix_fmt, stream.bit_rate = "yuv420p", 2_000_000
        for pixels in content.frames:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")))
        out.mux(stream.encode())
    return file.getvalue()


def main() -> None:
    """Write files that were not trained on, and print a question and its right answer for each."""
    parser = argparse.ArgumentParser(prog="python -m demo_training.senses.held_out", description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--each", type=int, default=2, help="files of each skill")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for skill in SKILLS:
        pairs = islice(_pairs(skill, Random(f"{skill} {options.seed}")), options.each)
        for number, (shown, turn) in enumerate(pairs, start=1):
            form, data = as_file(shown)
            (options.folder / f"{skill}-{number}.{form}").write_bytes(data)
            print(f"{skill}-{number}.{form}\t{turn.ask}\t{turn.answer}")


if __name__ == "__main__":
    main()
