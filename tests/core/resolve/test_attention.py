"""Which attention backends an engine may run on, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from lsv.capabilities import Capabilities, DeviceInfo
from lsv.config import Choices, OptionValue
from lsv.offers import AttentionOffer
from lsv.platform import Platform
from lsv.resolve.attention import AskedOfAttention, choose_attention
from lsv_base.errors import ConfigError
from lsv_runtime.devices.device import Device
from lsv_testing.catalog import catalog_of


class MadeUp(Platform):
    name = "made-up"
    attention: Sequence[str] = ("fast", "narrow", "slow")

    def devices(self) -> Sequence[DeviceInfo]:
        return ()

    def capabilities(self, info: DeviceInfo) -> Capabilities:
        raise NotImplementedError

    def open(self, index: int, options: Mapping[str, OptionValue]) -> Device:
        raise NotImplementedError


class Vendor:
    """Offers ``fast``, which lacks its package, one for 16-bit floats alone, one for all, one of elsewhere."""

    @staticmethod
    def lsv_attention() -> Sequence[AttentionOffer]:
        halves, other = ("float16", "bfloat16"), ("elsewhere",)
        return (
            AttentionOffer("other", "x:y", (16,), other, aliases=("FLASH",)),
            AttentionOffer("slow", "x:y", (16, 256), aliases=("PLAIN",)),
            AttentionOffer("narrow", "x:y", (256,), dtypes=halves, kv_dtypes=("auto", "fp8_e4m3"), aliases=("FLASH",)),
            AttentionOffer("fast", "x:y", (16,), ("made-up",), missing=lambda: "a package", aliases=("FLASH",)),
        )


def choose(name: str | None = None, layout: Any = "flat", **asked: Any) -> tuple[list[str], str]:
    """The backends, and why the first one."""
    choices, capabilities = Choices(), Capabilities(dtypes=("float32",), layout=layout)
    found = choose_attention(name, MadeUp(), capabilities, catalog_of(Vendor), choices, AskedOfAttention(**asked))
    return [offer.name for offer in found], choices.reasons[0].why if choices.reasons else ""


@pytest.mark.parametrize(
    ("asked", "names", "words"),
    [
        ({}, ["narrow", "slow"], "fast, which lacks a package"),
        ({"dtype": "float16"}, ["narrow", "slow"], "fast, which lacks a package"),
        ({"dtype": "float32"}, ["slow"], "narrow, which computes in float16, bfloat16, not in float32"),
        ({"kv_dtype": "fp8_e4m3"}, ["narrow", "slow"], ""),
        ({"kv_dtype": "int8"}, ["slow"], "narrow, which has caches of auto, fp8_e4m3, not of int8"),
        ({"block_size": 16}, ["slow"], "narrow, which has no blocks of 16 tokens"),
        ({"block_size": 256}, ["narrow", "slow"], ""),
        ({"block_size": 99}, ["narrow"], ""),
    ],
    ids=str,
)
def test_all_that_can_run_are_chosen_in_the_platforms_order(
    asked: dict[str, Any], names: list[str], words: str
) -> None:
    found, why = choose(**asked)
    assert found == names
    assert words in why


@pytest.mark.parametrize(
    ("name", "asked", "message"),
    [
        ("fast", {}, "attention backend fast lacks a package"),
        ("slow", {"layout": "padded"}, "takes flat batches, and platform made-up makes padded ones"),
        ("other", {}, "runs on elsewhere, not on made-up"),
        ("narrow", {"dtype": "float32"}, "attention backend narrow computes in float16, bfloat16, not in float32"),
        ("FLASH", {"dtype": "float32"}, "backend fast lacks a package; attention backend narrow computes in"),
        ("flsh", {}, "flsh"),
        (None, {"layout": "padded"}, "no attention backend that can run here"),
    ],
)
def test_what_cannot_run_is_refused(name: str | None, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose(name, **asked)


def test_a_name_of_several_means_the_platforms_first_that_can_run() -> None:
    assert choose("FLASH") == (["narrow"], "FLASH is another name for it")
    assert choose("plain") == (["slow"], "plain is another name for it")
    assert choose("slow") == (["slow"], "")
