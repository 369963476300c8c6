"""Assets of example scripts: fetched once from a source that this test is, then read from the cache."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lsv_base.errors import BadRequest, RequestFailed
from lsv_multimodal import assets
from lsv_multimodal.assets import AudioAsset, ImageAsset, VideoAsset
from suite.caches import own_cache

from .conftest import clip, sound


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The paths that the source was asked for."""
    paths: list[str] = []

    class Source(SimpleHTTPRequestHandler):
        def log_message(self, form: str, *args: object) -> None:
            paths.append(self.path)

    folder = tmp_path / "source"
    for name in ("vision_model_images", "multimodal_asset", "main"):
        (folder / name).mkdir(parents=True)
    picture = io.BytesIO()
    Image.new("RGB", (8, 6), (200, 0, 0)).save(picture, "JPEG")
    (folder / "vision_model_images" / "cherry_blossom.jpg").write_bytes(picture.getvalue())
    (folder / "multimodal_asset" / "mary_had_lamb.ogg").write_bytes(sound(np.zeros((2, 1600)), 16000))
    (folder / "main" / "sample_demo_1.mp4").write_bytes(clip([10, 90, 170, 250]))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Source, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(assets, "SOURCE", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(assets, "VIDEOS", f"{assets.SOURCE}/main")
    monkeypatch.setenv("LSV_CACHE_ROOT", str(own_cache(tmp_path / "cache")))
    yield paths
    server.shutdown()
    server.server_close()


@pytest.mark.row("F-095")
def test_they_are_fetched_once_and_kept(asked: list[str]) -> None:
    for _ in range(2):
        assert ImageAsset("cherry_blossom").pil_image.convert("RGB").size == (8, 6)
        samples, rate = AudioAsset("mary_had_lamb").audio_and_sample_rate
        assert (samples.shape, samples.dtype, rate) == ((1600,), np.float32, 16000)
    assert asked == ["/vision_model_images/cherry_blossom.jpg", "/multimodal_asset/mary_had_lamb.ogg"]
    assert AudioAsset("winning_call").url == f"{assets.SOURCE}/multimodal_asset/winning_call.ogg"


def test_frames_of_a_video(asked: list[str]) -> None:
    frames = VideoAsset("sample_demo_1.mp4").np_ndarrays
    assert (frames.shape, frames.dtype) == ((4, 32, 32, 3), np.uint8)
    few = VideoAsset("sample_demo_1.mp4", num_frames=2).pil_images
    assert [np.asarray(one).tolist() for one in few] == [frames[0].tolist(), frames[3].tolist()]
    assert asked == ["/main/sample_demo_1.mp4"]


def test_what_is_not_there_is_told_and_leaves_nothing(asked: list[str], tmp_path: Path) -> None:
    with pytest.raises(RequestFailed, match=r"nowhere\.jpg can't be fetched: .*404.*; put the file at"):
        _ = ImageAsset("nowhere").pil_image
    with pytest.raises(BadRequest, match="letters, digits"):
        _ = ImageAsset("../../etc/passwd").pil_image
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
