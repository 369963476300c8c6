"""What fetches and decodes media, and the processors of families that take them."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.offers import LogitsProcessorOffer, MediaOffer, ProcessorOffer
from lsv_multimodal.families.offers import OFFERS

api = 2


@hookimpl
def lsv_media() -> Iterable[MediaOffer]:
    yield MediaOffer(
        "local", load="lsv_multimodal.service:LocalMediaService", offline="lsv_multimodal.offline:InProcessMedia"
    )


@hookimpl
def lsv_processors() -> Iterable[ProcessorOffer]:
    return OFFERS


@hookimpl
def lsv_logits_processors() -> Iterable[LogitsProcessorOffer]:
    yield LogitsProcessorOffer(
        "whisper",
        "lsv_multimodal.families.whisper.timestamps:TimestampRules",
        arguments="lsv_multimodal.families.whisper.rules:WhisperRules",
    )
