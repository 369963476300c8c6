"""The block pool, block hashes and pending blocks."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from collections import Counter

import pytest

from lsv.kv.blocks import BlockPool
from lsv.kv.pending import PendingBlocks
from lsv.kv.prefix import block_hash, pack, pack_extras, root_hash

ROOT = root_hash(weights="w", quantizer=None, kv_dtype="bf16", block_size=4)


def test_null_block_is_never_handed_out():
    pool = BlockPool(3)
    assert sorted(pool.take(3)) == [1, 2, 3]
    assert pool.available == 0


@pytest.mark.row("F-353")
def test_cached_block_is_available_and_still_found():
    pool = BlockPool(2)
    (block,) = pool.take(1)
    pool.publish(block, b"a")
    pool.unref(block)
    assert pool.available == 2
    assert pool.find(b"a") == block
    pool.ref(block)
    assert pool.available == 1
    pool.check([block])


def test_free_blocks_go_before_cached_ones_and_the_longest_unused_is_evicted_first():
    pool = BlockPool(3)
    first, second, third = pool.take(3)
    pool.publish(first, b"a")
    pool.publish(second, b"b")
    for block in (second, third, first):
        pool.unref(block)
    assert pool.take(1) == [third]
    assert pool.take(1) == [second]
    assert pool.find(b"b") is None
    assert pool.find(b"a") == first


def test_second_copy_of_a_content_stays_private():
    pool = BlockPool(2)
    one, other = pool.take(2)
    pool.publish(one, b"a")
    pool.publish(other, b"a")
    pool.unref(other)
    assert pool.find(b"a") == one
    pool.check([one])


def test_freeing_twice_is_caught():
    pool = BlockPool(1)
    (block,) = pool.take(1)
    pool.unref(block)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.unref(block)


def test_random_use_of_the_pool_adds_up():
    rng, pool = random.Random(1), BlockPool(12)
    used: Counter[int] = Counter()
    for turn in range(2000):
        choice = rng.random()
        if choice < 0.4 and pool.available:
            used.update(pool.take(rng.randint(1, pool.available)))
        elif choice < 0.6 and used:
            pool.publish(rng.choice(list(used)), b"%d" % (turn % 40))
        elif choice < 0.7 and (block := pool.find(b"%d" % rng.randrange(40))) is not None:
            pool.ref(block)
            used[block] += 1
        elif used:
            block = rng.choice(list(used))
            pool.unref(block)
            used -= Counter([block])
        if turn % 500 == 499:
            pool.clear_cache()
        pool.check(used.elements())


@pytest.mark.row("F-1013", "F-352")
def test_block_hash_is_the_documented_chain():
    extras = pack_extras(salt=b"tenant")
    assert extras == b"\x04\0\0\0salt\x06\0\0\0tenant"
    ids = b"\x01\0\0\0\x02\0\0\0\xff\xff\0\0\0\0\0\x80"
    expected = hashlib.sha256(ROOT + ids + extras).digest()
    assert block_hash(ROOT, (1, 2, 0xFFFF, 1 << 31), extras) == expected


@pytest.mark.row("F-352")
@pytest.mark.parametrize("change", [{"weights": "v"}, {"quantizer": "int4"}, {"kv_dtype": "fp8"}, {"block_size": 8}])
def test_root_depends_on_all_that_changes_a_block(change):
    plain = {"weights": "w", "quantizer": None, "kv_dtype": "bf16", "block_size": 4}
    assert root_hash(**{**plain, **change}) != ROOT


def test_packing_keeps_borders():
    assert pack([b"ab", b"c"]) != pack([b"a", b"bc"])
    assert pack_extras(salt=b"") == b""


@pytest.mark.row("F-1013")
def test_hashes_are_the_same_in_another_process():
    code = (
        "from lsv.kv.prefix import *;"
        "r = root_hash(weights='w', quantizer=None, kv_dtype='bf16', block_size=4);"
        "print(block_hash(r, (1, 2, 3, 4), b'').hex())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == block_hash(ROOT, (1, 2, 3, 4), b"").hex()


def test_parked_requests_are_unparked_once_when_the_owner_settles():
    pending = PendingBlocks()
    pending.add([b"a", b"b"], owner=1)
    pending.add([b"a"], owner=2)
    pending.park(b"a", 3)
    pending.settle([b"a"], owner=2)
    assert pending.owner(b"a") == 1
    assert pending.take_unparked() == []
    pending.settle([b"a", b"b"], owner=1)
    assert pending.take_unparked() == [3]
    assert pending.take_unparked() == []
    assert pending.owner(b"b") is None
