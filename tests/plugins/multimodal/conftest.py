"""The made-up family in ``site``, and images, audio and video made in code."""

from __future__ import annotations

import base64
import fractions
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import tokenizers
from PIL import Image

from lsv import plugins
from lsv.config import EngineConfig
from lsv.plugins import Plugins
from lsv_testing.fakes.client import fake_config
from lsv_testing.tiny import write_tokenizer

SITE = Path(__file__).parent / "site"


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugins]:
    """The plugins with the family's among them, here and in processes that are started."""
    record = tmp_path_factory.mktemp("site") / "mini_media-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: mini-media\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text("[lsv]\nmini = mini_media.plugin\n")
    folders = [str(SITE), str(record.parent)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")]))
        patch.setattr(sys, "path", [*folders, *sys.path])
        yield plugins.load(["mini", "models", "multimodal", "cpu"])


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory, family: Plugins) -> EngineConfig:
    """A configuration of the family; the folder holds config.json and a tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    write_mini_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps({"architectures": ["MiniForCausalLM"]}))
    return fake_config(model=str(folder), architecture="MiniForCausalLM", plugins=family.names, max_model_len=512)


def encode(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def solid(*colour: int, size: tuple[int, int] = (4, 3), mode: str = "RGB") -> bytes:
    return encode(Image.new(mode, size, colour))


def link(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def sound(samples: np.ndarray, rate: int, kind: str = "wav", codec: str = "pcm_s16le") -> bytes:
    """Encoded float32 [channels, samples]."""
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        layout = {1: "mono", 2: "stereo", 6: "5.1"}[len(samples)]
        stream = container.add_stream(codec, rate=rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples, np.float32), format="fltp", layout=layout)
        frame.sample_rate = rate
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    return file.getvalue()


def clip(reds: list[int], fps: int = 4, kind: str = "mp4", size: int = 32, heard: np.ndarray | None = None) -> bytes:
    """A clip whose frames are grey, each as bright as ``reds`` say; ``heard`` float32 [samples], 16,000 a second."""
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream("libx264", rate=fps, options={"crf": "0"})
        stream.width = stream.height = size
        stream.pix_fmt = "yuv444p"
        stream.time_base = fractions.Fraction(1, fps)
        track = None if heard is None else container.add_stream("pcm_s16le", rate=16000, layout="mono")
        for red in reds:
            frame = av.VideoFrame.from_ndarray(np.full((size, size, 3), red, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if track is not None and heard is not None:
            sound = av.AudioFrame.from_ndarray(np.ascontiguousarray(heard[None], np.float32), "fltp", "mono")
            sound.sample_rate = 16000
            for packet in (*track.encode(sound), *track.encode(None)):
                container.mux(packet)
    return file.getvalue()


@pytest.fixture(scope="session")
def film() -> Callable[..., bytes]:
    """``clip``, for tests of families."""
    return clip


TEMPLATE = (
    "{% for m in messages %}{% for part in m['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<{{ part['type'] }}>{% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


def write_mini_tokenizer(folder: Path) -> None:
    """A token a byte, and one for each kind of media: 259, 260, 261. The template takes parts alone."""
    write_tokenizer(folder)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    marks = [tokenizers.AddedToken(name, special=True) for name in ("<image>", "<audio>", "<video>")]
    tokenizer.add_special_tokens(marks)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
