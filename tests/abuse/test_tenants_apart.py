"""Caches are separate for each tenant: one tenant fills a cache, and another tries to read it."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from lsv.config import Drafts
from lsv.engine.admission import encode_bad_words
from lsv.kv.checkpoints import Branches
from lsv.kv.manager import KVManager
from lsv.kv.spec import STATE_WINDOW, KVGroup
from lsv.request.media import Media
from lsv.request.params import SamplingParams
from lsv.request.request import Request
from lsv.scheduler.limits import Limits
from lsv_drafters.suffix import SuffixDrafter
from lsv_runtime.drafts.drafter import Draftable
from lsv_testing.fakes.requests import make_request
from lsv_testing.fakes.rig import Rig
from lsv_testing.fakes.text import letters
from lsv_testing.fakes.tiers import FakeKeeper

TOKENS = tuple(range(30))
GROUPS = (KVGroup(0, "full", (0,), 1), KVGroup(1, "state", (1,), 0, window=STATE_WINDOW, state_bytes=64))


def ask(rig: Rig, id: int, tenant: bytes, media: tuple[Media, ...] = ()) -> Request:
    sampling = SamplingParams(temperature=0.0, max_tokens=2)
    asked = rig.add(make_request(id, TOKENS, sampling=sampling, media=media, salt=tenant, tenant=tenant.decode()))
    rig.run()
    return asked


@pytest.mark.parametrize("kept", ["on the device", "in host memory", "by a keeper"])
def test_blocks(kept: str) -> None:
    keeper = FakeKeeper() if kept == "by a keeper" else None
    rig = Rig(groups=GROUPS, num_blocks=100, cells=None if kept == "on the device" else 100, keeper=keeper)
    ask(rig, 1, b"a")
    if kept != "on the device":
        rig.kv.reset_prefix_cache(host=False)
    assert ask(rig, 2, b"b").cached == 0
    assert ask(rig, 3, b"a").cached == 28


def test_names_of_contents() -> None:
    """Engines promise, fetch and revoke contents by these names, which also show where prompts differ."""
    kv = KVManager(GROUPS, 20, 4, root=b"root")
    own, others = (kv.names(make_request(1, TOKENS, sampling=SamplingParams(), salt=salt)) for salt in (b"a", b"b"))
    assert not {*own} & {*others}
    branches = Branches()
    branches.note(own)
    assert (branches.note(others), branches.note(own)) == (0, len(own))


def test_embeddings_of_media() -> None:
    rig = Rig(
        limits=Limits(max_num_seqs=4, max_num_batched_tokens=32, max_model_len=64, encoder_tokens=40, encoder_parts=1)
    )
    item = Media(hash=hashlib.sha256(b"picture").digest(), modality="image", start=4, count=8)
    for id, tenant in enumerate((b"a", b"b", b"a", b"b")):
        ask(rig, id, tenant, (item,))
        rig.kv.reset_prefix_cache()
    assert [len(plan.encode) for plan in rig.plans if plan.encode] == [1, 1], "each tenant's once"


def test_drafts() -> None:
    drafter = SuffixDrafter(Drafts(drafter="suffix", most=4, options={}))
    told: dict[str, object] = {}
    drafter.propose([Draftable(told, np.array([1, 4, 5, 6, 7, 8], np.int32), 1, 4, salt=b"a")])
    drafter.end(told)
    found = {
        salt: drafter.propose([Draftable({}, np.array([9, 5, 6], np.int32), 1, 4, salt=salt)])[0]
        for salt in (b"a", b"b", b"")
    }
    assert found == {b"a": [7, 8], b"b": [], b"": []}


def test_a_slot_of_the_worker_knows_its_tenant() -> None:
    rig = Rig()
    ask(rig, 1, b"a")
    assert [begin.salt for plan in rig.plans for begin in plan.begin] == [b"a"]


def test_bad_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenising a long list takes measurable time."""
    tokenizer, encoded = letters(97), []
    encode = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text, **given: encoded.append(text) or encode(text, **given))
    for tenant in (b"a", b"b", b"a"):
        encode_bad_words(("ab",), tokenizer, tenant)
    assert encoded == ["ab", " ab"] * 2
