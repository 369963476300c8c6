"""What a replica is thought to hold of a prompt."""

from __future__ import annotations

from lsv.engine.replicas.prefixes import HeldBlocks, name_blocks
from lsv.request.media import Media
from lsv.request.params import SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec


def request(*prompts: list[int] | Prompt, **changes) -> RequestSpec:
    found = tuple(one if isinstance(one, Prompt) else Prompt(tuple(one)) for one in prompts)
    return RequestSpec(prompts=found, sampling=SamplingParams(), request_id="r", **changes)


def chain(*prompts, **changes):
    return name_blocks(request(*prompts, **changes), 4)[0]


def test_prompts_share_the_blocks_before_they_part():
    long, other = chain(range(12)), chain([*range(8), 99, 99, 99, 99])
    assert len(long) == 3
    assert long[:2] == other[:2]
    assert long[2] != other[2]
    assert len(chain(range(11))) == 2, "only full blocks are shared"
    assert chain([1, 2]) == ()


def test_tenants_adapters_and_media_part_prompts():
    plain = chain(range(8))
    assert not set(plain) & set(chain(range(8), salt=b"tenant"))
    assert not set(plain) & set(chain(range(8), adapter="a"))
    picture = Media(hash=b"x" * 32, modality="image", start=5, count=2)
    pictured = chain(Prompt(tuple(range(8)), media=(picture,)))
    assert pictured[0] == plain[0]
    assert pictured[1] != plain[1]


def test_each_prompt_has_a_chain():
    assert [len(one) for one in name_blocks(request(range(8), range(4)), 4)] == [2, 1]


def test_held_blocks_count_from_the_beginning():
    held, whole = HeldBlocks(), chain(range(16))
    held.add([whole[:2], whole[3:]], 10)
    assert held.count(whole) == 2
    assert held.count(chain([9, 9, 9, 9])) == 0
    held.clear()
    assert held.count(whole) == 0


def test_the_oldest_are_forgotten_and_of_a_prompt_its_end():
    held, first, second = HeldBlocks(), chain(range(16)), chain(range(50, 62))
    held.add([first], 6)
    held.add([second], 6)
    assert len(held) == 6
    assert held.count(second) == 3
    assert held.count(first) == 3, "its last block went"
    held.add([first[:1]], 6)
    held.add([chain(range(70, 90))], 6)
    assert held.count(first) == 1, "what was used last stayed"
