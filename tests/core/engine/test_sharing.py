"""Media go to the engine by reference."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from lsv.engine.messages import ClientMessage, Submit
from lsv.engine.sharing import LEAST, share_media, shared_media
from lsv.media.shared import SUPPORTED, SharedMemory, read_data
from lsv.request.media import Array, Media, Stored
from lsv.request.params import SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv_base.processes.wire import FrameReader, encode_frame
from suite.files import nothing_left_open

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="this system has no memfd_create")


def picture(fill: int, size: int) -> Media:
    data = bytes([fill]) * size
    inputs = {"pixels": Array("uint8", (size,), data), "grid": Array("uint8", (3,), b"abc")}
    return Media(bytes([fill]) * 32, "image", 0, 1, inputs)


def submit(*sizes: int) -> Submit:
    prompts = (Prompt(ids=(1,)), Prompt(ids=(2,), media=tuple(picture(fill, size) for fill, size in enumerate(sizes))))
    return Submit(id=0, spec=RequestSpec(prompts=prompts, sampling=SamplingParams(n=4), request_id="r"))


async def test_the_engine_reads_what_the_client_has_stored():
    sent = submit(LEAST, 5)
    with nothing_left_open():
        async with shared_media(sent) as referring:
            (received,) = FrameReader(ClientMessage).feed(encode_frame(referring))
            assert len(encode_frame(received)) < 2000, "the media are not in the message"
            for media, told in zip(sent.spec.prompts[1].media, received.spec.prompts[1].media, strict=True):
                assert {name: read_data(array) for name, array in told.inputs.items()} == {
                    name: bytearray(array.data) for name, array in media.inputs.items()
                }
                assert told.size == media.size
                plain = msgspec.structs.replace(told, inputs=media.inputs)
                assert plain == media
    with pytest.raises(OSError, match="No such file"):
        read_data(received.spec.prompts[1].media[0].inputs["pixels"])


async def test_little_media_travel_in_the_message():
    sent = submit(10)
    async with shared_media(sent) as same:
        assert same is sent


async def test_media_for_another_machine_travel_in_the_message():
    sent = submit(LEAST, 5)
    async with shared_media(sent, near=False) as same:
        assert same is sent


def test_another_process_reads_it():
    with SharedMemory("test") as memory:
        _, stored = memory.append([b"first", b"second"])
        program = (
            "import sys; from lsv.media.shared import read_data; from lsv.request.media import Array, Stored; "
            "print(bytes(read_data(Array('uint8', (6,), Stored(sys.argv[1], int(sys.argv[2]), 6)))))"
        )
        command = [sys.executable, "-c", program, stored.path, str(stored.offset)]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "b'second'"


def test_a_reference_beyond_the_end_is_an_error():
    with SharedMemory("test") as memory:
        (stored,) = memory.append([b"short"])
        with pytest.raises(OSError, match="ends 10 bytes early"):
            read_data(Array("uint8", (15,), Stored(stored.path, 0, 15)))


def test_closing_twice_does_no_harm():
    memory = SharedMemory("test")
    memory.close()
    memory.close()
    assert share_media(submit(), SharedMemory("none")) == submit()
