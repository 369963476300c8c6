"""Encoded content to pixels and samples: every mode and format, every limit, and what is damaged."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image, ImageOps

from lsv.media.options import Limits
from lsv_base.errors import BadRequest
from lsv_multimodal.decoding import images
from lsv_multimodal.decoding.audio import decode_audio, measure_audio, mix_audio
from lsv_multimodal.decoding.frames import choose_frames
from lsv_multimodal.decoding.images import decode_image, measure_image
from lsv_multimodal.decoding.video import decode_video, measure_video

from .conftest import clip, encode, sound

LIMITS = Limits()


def colour(data: bytes) -> list[int]:
    pixels = decode_image(data, LIMITS).pixels
    assert pixels.dtype == np.uint8
    return pixels[0, 0].tolist()


def palette(transparent: bool) -> bytes:
    image = Image.new("P", (2, 2), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    return encode(image, transparency=1) if transparent else encode(image)


def half_transparent(mode: str) -> bytes:
    return encode(Image.new("RGBA", (2, 2), (0, 0, 0, 128)).convert(mode))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (encode(Image.new("RGB", (2, 2), (1, 2, 3))), [1, 2, 3]),
        (encode(Image.new("RGB", (2, 2), (1, 2, 3)), "WEBP", lossless=True), [1, 2, 3]),
        (encode(Image.new("RGB", (2, 2), (1, 2, 3)), "BMP"), [1, 2, 3]),
        (encode(Image.new("L", (2, 2), 77)), [77, 77, 77]),
        (encode(Image.new("1", (2, 2), 1)), [255, 255, 255]),
        (encode(Image.fromarray(np.full((2, 2), 0x4D00, np.uint16))), [0x4D] * 3),
        (palette(transparent=False), [10, 20, 30]),
        (palette(transparent=True), [255, 255, 255]),
        (encode(Image.new("RGB", (2, 2), (9, 9, 9)), transparency=(9, 9, 9)), [255, 255, 255]),
        (half_transparent("RGBA"), [127, 127, 127]),
        (half_transparent("LA"), [127, 127, 127]),
        (encode(Image.new("CMYK", (8, 8), (255, 0, 0, 0)), "JPEG", quality=100), [0, 255, 255]),
    ],
)
def test_every_mode_becomes_opaque_rgb(data: bytes, expected: list[int]) -> None:
    assert np.abs(np.array(colour(data)) - expected).max() <= 3


def test_exif_turns_a_picture() -> None:
    image = Image.new("RGB", (16, 8), (0, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter to the right
    assert decode_image(encode(image, "JPEG", exif=exif), LIMITS).pixels.shape == (16, 8, 3)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_the_first_frame_of_an_animation(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), shade) for shade in ((200, 0, 0), (0, 200, 0))]
    data = encode(frames[0], kind, save_all=True, append_images=frames[1:], duration=100)
    shown = colour(data)
    assert shown[0] > 150 > 60 > shown[1]


@pytest.mark.parametrize("size", [(1, 1), (1, 10_000), (10_000, 1)])
def test_odd_shapes(size: tuple[int, int]) -> None:
    assert decode_image(encode(Image.new("RGB", size)), LIMITS).pixels.shape == (size[1], size[0], 3)


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header alone claims a size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", len(header)) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    empty = b"\0\0\0\0IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    return b"\x89PNG\r\n\x1a\n" + chunk + empty


NOISE = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an image in a supported format"),
        (b"hello", "not an image in a supported format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image in a supported format"),
        (encode(Image.new("RGB", (2, 2)), "TIFF"), "not an image in a supported format"),
        (encode(Image.new("RGB", (2, 2)), "JPEG2000"), "not an image in a supported format"),
        (encode(Image.fromarray(NOISE))[:2000], "cut off"),
        (encode(Image.fromarray(NOISE), "JPEG")[:900], "cut off"),
        (encode(Image.fromarray(NOISE), "GIF")[:900], "cut off"),
        (encode(Image.fromarray(NOISE), "PNG")[:20], "damaged|not an image"),
        (bomb(20_000, 20_000), "over the limit of 64,000,000"),
        (bomb(8_001, 8_000), "64008000 pixels are over|over the limit of 64,000,000"),
        (bomb(0, 5), "damaged|not a size|not an image"),
    ],
)
def test_images_that_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        decode_image(data, LIMITS)
    assert "0x" not in caught.value.message


def tone(channels: int, seconds: float = 1.0, rate: int = 16_000, level: float = 0.5) -> np.ndarray:
    wave = level * np.sin(2 * np.pi * 440 * np.arange(int(seconds * rate)) / rate)
    return np.repeat(wave[None], channels, 0).astype(np.float32)


@pytest.mark.row("F-699")
@pytest.mark.parametrize(
    ("kind", "codec"), [("wav", "pcm_s16le"), ("flac", "flac"), ("ogg", "libopus"), ("mp3", "mp3"), ("mp4", "aac")]
)
@pytest.mark.parametrize("rate", [8_000, 16_000])
def test_every_format_at_the_rate_that_is_wanted(kind: str, codec: str, rate: int) -> None:
    found = decode_audio(sound(tone(2, rate=48_000), 48_000, kind, codec), rate, LIMITS)
    assert (found.samples.dtype, found.samples.ndim, found.rate) == (np.float32, 1, rate)
    assert len(found.samples) == pytest.approx(rate, rel=0.15)
    spectrum = np.abs(np.fft.rfft(found.samples))
    assert spectrum.argmax() * rate / len(found.samples) == pytest.approx(440, abs=2)
    assert np.abs(found.samples).max() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("channels", [1, 2, 6])
def test_channels_count_alike(channels: int) -> None:
    """Also the one for low frequencies, which players often leave out."""
    for alone in range(channels):
        samples = np.zeros((channels, 8_000), np.float32)
        samples[alone] = 0.6
        found = decode_audio(sound(samples, 8_000), 8_000, LIMITS).samples
        assert found[4_000] == pytest.approx(0.6 / channels, abs=1e-3)
        assert mix_audio(samples, 8_000, 8_000, LIMITS).samples[4_000] == pytest.approx(0.6 / channels, abs=1e-3)


def test_numbers_as_sounds() -> None:
    quarter = np.full((8_000, 2), 8_192, np.int16)
    assert mix_audio(quarter, 8_000, 16_000, LIMITS).samples[8_000] == pytest.approx(0.25, abs=1e-2)
    assert mix_audio([0.5] * 9, 8_000, 8_000, LIMITS).samples.tolist() == [0.5] * 9
    for wrong in ([], [[[0.0]]], [float("nan")]):
        with pytest.raises(BadRequest):
            mix_audio(wrong, 8_000, 8_000, LIMITS)


@pytest.mark.parametrize(
    ("data", "limits", "message"),
    [
        (b"", LIMITS, "damaged"),
        (b"hello", LIMITS, "damaged"),
        (clip([0, 0]), LIMITS, "contains no audio"),
        (sound(tone(1, 3), 16_000), Limits(seconds=2), "may last 2 s, this lasts 3 s"),
        (b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n", LIMITS, "damaged|can't be decoded"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", LIMITS, "damaged|can't be decoded"),
    ],
)
def test_audio_that_is_refused(data: bytes, limits: Limits, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        decode_audio(data, 16_000, limits)
    assert "0x" not in caught.value.message


def test_a_codec_that_nobody_knows() -> None:
    data = bytearray(sound(tone(1, 1), 16_000))
    data[20:22] = b"\x77\x77"  # the format tag of the WAV
    with pytest.raises(BadRequest, match="a codec that is not known here"):
        decode_audio(bytes(data), 16_000, LIMITS)


def reds(data: bytes, **options: Any) -> list[int]:
    found = decode_video(data, options, LIMITS)
    return [round(frame[..., 0].mean()) for frame in found.frames]


SHADES = [10, 30, 50, 70, 90, 110, 130, 150]


@pytest.mark.row("F-1017")
@pytest.mark.parametrize("kind", ["mp4", "matroska", "avi"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [10, 50, 90, 130]),
        ({"fps": 1}, [10, 90]),
        ({"fps": 4}, SHADES),
        ({"fps": 30}, SHADES[:-1]),
        ({"num_frames": 2}, [10, 150]),
        ({"num_frames": 3}, [10, 90, 150]),
        ({"num_frames": 1}, [10]),
        ({"num_frames": 100}, SHADES),
    ],
)
def test_which_frames_are_taken(kind: str, options: dict[str, Any], expected: list[int]) -> None:
    assert np.abs(np.array(reds(clip(SHADES, kind=kind), **options)) - expected).max() <= 3


def test_times_count_from_the_first_frame() -> None:
    found = decode_video(clip(SHADES), {"fps": 2}, LIMITS)
    assert found.times.tolist() == pytest.approx([0, 0.5, 1, 1.5], abs=1e-3)
    assert found.frames.shape == (4, 32, 32, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fps": 0}, "fps must be a positive number"),
        ({"fps": "many"}, "fps must be"),
        ({"num_frames": True}, "num_frames must be"),
        ({"num_frames": 2.5}, "whole number"),
        ({"num_frames": 10_000}, "up to 768"),
        ({"num_frames": 2, "fps": 2}, "not both"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        choose_frames([0.0, 1.0], options, LIMITS)


def test_a_long_clip_gives_frames_from_everywhere() -> None:
    chosen = choose_frames([n / 30 for n in range(90_000)], {}, LIMITS)
    assert (len(chosen), chosen[0], chosen[-1]) == (64, 0, 89_999)
    assert len(choose_frames([n / 30 for n in range(90_000)], {"fps": 5}, LIMITS)) == LIMITS.frames


@pytest.mark.parametrize(
    ("data", "limits", "message"),
    [
        (b"", LIMITS, "damaged"),
        (clip(SHADES)[:700], LIMITS, "damaged|can't be decoded|no images|no frames|none of"),
        (sound(tone(1), 16_000), LIMITS, "no images in the video"),
        (clip(SHADES), Limits(pixels=1000), "1024|over the limit of 1,000"),
        (clip(SHADES), Limits(seconds=1), "may last 1 s, this one lasts 2 s"),
        (clip(SHADES), Limits(decoded=10_000), "ask for fewer"),
    ],
)
def test_videos_that_are_refused(data: bytes, limits: Limits, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        decode_video(data, {}, limits)


@pytest.mark.row("F-703")
def test_a_picture_is_its_pixels_however_it_came() -> None:
    image = Image.fromarray(NOISE)
    again = decode_image(encode(image, "WEBP", lossless=True), LIMITS).pixels
    assert np.array_equal(again, decode_image(encode(image), LIMITS).pixels)
    assert np.array_equal(again, np.asarray(Image.open(io.BytesIO(encode(image)))))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_turned_as_pillow_turns_it(orientation: int) -> None:
    image = Image.fromarray(np.random.default_rng(1).integers(0, 255, (5, 7, 3), np.uint8))
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(image, exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    np.testing.assert_array_equal(decode_image(data, LIMITS).pixels, expected)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "L", "P", "1", "CMYK", "I;16"])
def test_strips_make_no_difference(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = Image.fromarray(np.random.default_rng(2).integers(0, 255, (19, 6, 4), np.uint8))
    image = (
        noise.convert("RGB").convert(mode) if mode in ("CMYK", "P", "1") else noise.convert(mode.replace("I;16", "I"))
    )
    image = image.convert(mode)
    whole = images.pixels_of(image)
    monkeypatch.setattr(images, "_ROWS", 4)
    np.testing.assert_array_equal(images.pixels_of(image), whole)


@pytest.mark.parametrize(("kind", "shape"), [("JPEG", (17, 9, 3)), ("PNG", (17, 9, 3))])
def test_a_large_image_is_reduced_where_it_will_be_small(
    kind: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = Image.new("RGB", (65, 130), (200, 100, 50))
    data, small = encode(image, kind), lambda width, height: (width // 24, height // 24)
    assert decode_image(data, LIMITS, small).pixels.shape == (130, 65, 3), "it is not large"
    monkeypatch.setattr(images, "_LARGE", 1000)
    assert decode_image(data, LIMITS).pixels.shape == (130, 65, 3), "nobody resizes it"
    reduced = decode_image(data, LIMITS, small).pixels
    assert reduced.shape == shape
    np.testing.assert_allclose(reduced, np.broadcast_to((200, 100, 50), shape), atol=4)
    assert decode_image(data, LIMITS, lambda width, height: (width, height)).pixels.shape == (130, 65, 3)


def test_pixels_are_limited_before_decoding() -> None:
    with pytest.raises(BadRequest, match=r"over the limit of 10 \(--max-image-pixels\)"):
        decode_image(encode(Image.new("RGB", (4, 3))), msgspec.structs.replace(LIMITS, pixels=10))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_images_measure_what_they_are_once_they_are_decoded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(Image.new("RGB", (301, 203), (9, 9, 9)), kind)
    assert measure_image(data, Limits()) == decode_image(data, Limits()).pixels.nbytes
    monkeypatch.setattr(images, "_LARGE", 1000)
    assert measure_image(data, Limits(), lambda *_: (10, 10)) < 301 * 203
    with pytest.raises(BadRequest, match="max-image-pixels"):
        measure_image(data, Limits(pixels=1000))


def test_sounds_and_clips_measure_what_they_are_once_they_are_decoded() -> None:
    heard = sound(np.zeros((1, 24_000), np.float32), 16_000)
    assert measure_audio(heard, 16_000, Limits()) == decode_audio(heard, 16_000, Limits()).samples.nbytes
    with pytest.raises(BadRequest, match="may last 1 s"):
        measure_audio(heard, 16_000, Limits(seconds=1))
    seen = clip([50, 60, 70, 80, 90, 100])
    given = {"num_frames": 3}
    assert measure_video(seen, given, Limits()) == decode_video(seen, given, Limits()).frames.nbytes
    with pytest.raises(BadRequest, match="max-decoded-mb"):
        measure_video(seen, given, Limits(decoded=1000))
