"""Segments of speech as subtitles."""

from __future__ import annotations

from collections.abc import Iterable

from lsv_api.records.responses import Segment


def srt(segments: Iterable[Segment]) -> str:
    """SubRip: numbered from 1, times with a comma."""
    return "".join(
        f"{number}\n{_time(segment.start, ',')} --> {_time(segment.end, ',')}\n{_line(segment)}\n\n"
        for number, segment in enumerate(segments, start=1)
    )


def vtt(segments: Iterable[Segment]) -> str:
    """WebVTT (W3C)."""
    cues = (f"{_time(segment.start, '.')} --> {_time(segment.end, '.')}\n{_line(segment)}\n\n" for segment in segments)
    return "".join(("WEBVTT\n\n", *cues))


def _line(segment: Segment) -> str:
    """The text on one line, without what would end a cue or look like its times."""
    return " ".join(segment.text.split()).replace("-->", "->")


def _time(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{point}{rest % 1000:03}"
