"""docs/platforms.md knows every platform, attention backend and kernel that lsv offers."""

from pathlib import Path

import pytest

from lsv.offers import AttentionOffer, KernelOffer, PlatformOffer
from lsv.plugins import load

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "platforms.md").read_text(encoding="utf-8")
CATALOG = load().catalog


@pytest.mark.parametrize("offer", CATALOG.offers(PlatformOffer), ids=lambda offer: offer.name)
def test_every_platform_has_a_column_and_devices(offer: PlatformOffer) -> None:
    columns = [line.split("|") for line in TEXT.splitlines() if line.startswith("| feature |")]
    assert [f" {offer.name} " in cells for cells in columns] == [True]
    assert f"\n| {offer.name} | " in TEXT


@pytest.mark.parametrize("offer", CATALOG.offers(AttentionOffer), ids=lambda offer: offer.name)
def test_every_attention_backend_is_told(offer: AttentionOffer) -> None:
    assert f"`{offer.name.removesuffix('-emulated')}`" in TEXT


def test_every_platform_with_an_emulation_is_tested_end_to_end() -> None:
    emulated = {offer.name for offer in CATALOG.offers(PlatformOffer) if offer.emulation}
    matrix = (Path(__file__).resolve().parents[1] / "e2e" / "test_platforms.py").read_text(encoding="utf-8")
    assert all(f'"{name}": {{' in matrix for name in emulated)
    assert {offer.platform for offer in CATALOG.offers(KernelOffer)} <= {*emulated, "*"}
