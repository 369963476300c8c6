from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.offers import ModelOffer, ProcessorOffer

api = 2


@hookimpl
def lsv_models() -> Iterable[ModelOffer]:
    yield ModelOffer("mini", ("MiniForCausalLM",), "mini_media.model:Mini", ("generate",), ("text", "image"))


@hookimpl
def lsv_processors() -> Iterable[ProcessorOffer]:
    where = {"load": "mini_media.processor:Mini", "place": "mini_media.placement:Mini"}
    yield ProcessorOffer("mini", ("MiniForCausalLM",), ("image", "audio", "video"), **where)
    yield ProcessorOffer("mini-pictures", ("MiniPictures",), ("image",), **where)
    yield ProcessorOffer(
        "mini-broken", ("MiniBroken",), ("image",), load="mini_media.nothing:Mini", place=where["place"]
    )
