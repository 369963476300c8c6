"""Opening audio and video with FFmpeg's demuxers: a few formats, from memory, nothing else reachable."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

import av
import av.container
import av.stream

from lsv_base.errors import BadRequest

_FORMATS = "wav,flac,ogg,mp3,aac,mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi"
"""Containers that hold their own data; playlists and scripts (hls, concat, …) name other files and hosts."""


def check_codec(stream: av.stream.Stream, what: str) -> None:
    """Raises ``BadRequest`` for a stream whose codec FFmpeg does not know."""
    if stream.codec_context is None:
        raise BadRequest(f"the {what} is in a codec that is not known here")


@contextmanager
def opened(data: bytes, what: str) -> Iterator[av.container.InputContainer]:
    """A container over encoded bytes. Raises ``BadRequest`` for what FFmpeg can't read, also while it is open."""
    options = {"format_whitelist": _FORMATS, "protocol_whitelist": "none"}
    try:
        with av.open(io.BytesIO(data), "r", options=options, metadata_errors="ignore") as container:
            yield container
    except MemoryError:
        raise MemoryError from None  # in place of FFmpeg's own, whose words are not for strangers
    except av.error.InvalidDataError:
        raise BadRequest(f"the {what} is damaged, cut off or in a format that is not taken") from None
    except (av.error.FFmpegError, ValueError):
        raise BadRequest(f"the {what} can't be decoded") from None
