"""Completions, embeddings and the tokenizer routes."""

from __future__ import annotations

import base64
import json
import struct

import pytest

from lsv.engine.messages import Stats
from lsv.request.encoded import EncodedText, encoded_ids
from lsv.text.tokenizer import NoTokenizer
from lsv_testing.fakes.client import BOS, VOCAB, FakeClient, fake_config


@pytest.mark.row("F-100", "F-121")
async def test_answer(site):
    body = (await site.complete()).json()
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    choice = body["choices"][0]
    assert choice["text"] == "Hello, world."
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    assert site.engine.requests[0].request_id == body["id"]
    assert site.engine.requests[0].prompt.ids == (BOS, *b"Hi")


@pytest.mark.row("F-100", "F-124")
@pytest.mark.parametrize(
    ("prompt", "sent"),
    [
        ("Hi", [(BOS, 72, 105)]),
        (["a", "b"], [(BOS, 97), (BOS, 98)]),
        ([1, 2, 3], [(1, 2, 3)]),
        ([[1], [2, 3]], [(1,), (2, 3)]),
    ],
)
async def test_prompts(site, prompt, sent):
    reply = await site.complete(prompt=prompt, n=2)
    (request,) = site.engine.requests
    assert [prompt.ids for prompt in request.prompts] == sent
    assert [choice["index"] for choice in reply.json()["choices"]] == list(range(2 * len(sent)))


async def test_many_prompts_stream(site):
    reply = await site.complete(
        prompt=["a", "b", "c"], stream=True, max_tokens=3, stream_options={"include_usage": True}
    )
    lines = reply.text.strip().split("\n\n")
    assert lines[-1] == "data: [DONE]"
    found = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    texts = {0: "", 1: "", 2: ""}
    for event in found[:-1]:
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert set(texts.values()) == {"Hel"}
    assert found[-1]["usage"]["completion_tokens"] == 9


@pytest.mark.row("F-054")
async def test_default_is_sixteen_tokens(site):
    site.engine.answer = "x" * 40
    body = (await site.complete()).json()
    assert (len(body["choices"][0]["text"]), body["choices"][0]["finish_reason"]) == (16, "length")
    await site.complete(prompt=[1] * 510)
    assert site.engine.requests[1].sampling.max_tokens == 2


@pytest.mark.row("F-126", "F-346")
async def test_best_of_takes_the_most_likely(site):
    site.engine.answers = {0: "sure", 1: "maybe", 2: "hardly"}
    body = (await site.complete(best_of=3, n=2)).json()
    assert [choice["text"] for choice in body["choices"]] == ["sure", "maybe"]
    assert all(choice["logprobs"] is None for choice in body["choices"])
    assert body["usage"]["completion_tokens"] == len("sure" + "maybe" + "hardly") + 3


@pytest.mark.row("F-124", "F-149")
async def test_logprobs_with_echo(site):
    shown = (await site.complete(echo=True, logprobs=2, max_tokens=2)).json()["choices"][0]
    assert shown["text"] == "HiHe"
    logprobs = shown["logprobs"]
    assert logprobs["tokens"] == ["<|256|>", "H", "i", "H", "e"]
    assert logprobs["token_logprobs"] == [None, -0.25, -0.25, -0.25, -0.25]
    assert logprobs["text_offset"] == [0, 0, 1, 2, 3]
    assert logprobs["top_logprobs"][1] == {"H": -0.25, "I": -0.5}
    assert (await site.complete(prompt=[72], echo=True, max_tokens=1)).json()["choices"][0]["text"] == "HH"


@pytest.mark.row("F-124")
async def test_logprobs_with_echo_without_a_special_first_token(site):
    body = (await site.complete(prompt=[72, 105], echo=True, logprobs=1, max_tokens=1)).json()
    assert body["choices"][0]["logprobs"]["tokens"] == ["H", "i", "H"]
    assert body["choices"][0]["logprobs"]["text_offset"] == [0, 1, 2]


async def test_offsets_count_what_the_text_shows(site):
    """Special tokens take no place in a text that leaves them out, and their own where it shows them."""
    for skip, offsets in ((True, [0, 1, 1, 2]), (False, [0, 1, 8, 9])):
        body = {"prompt": [72, 258, 105], "echo": True, "logprobs": 0, "max_tokens": 1, "skip_special_tokens": skip}
        assert (await site.complete(**body)).json()["choices"][0]["logprobs"]["text_offset"] == offsets


async def test_logprobs_of_the_chosen_token_alone(site):
    logprobs = (await site.complete(logprobs=0, max_tokens=1)).json()["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"H": -0.25}]


async def test_logprobs_of_the_whole_vocabulary(start):
    site = await start(FakeClient(fake_config(max_logprobs=-1)))
    await site.complete(logprobs=-1, max_tokens=1)
    await site.chat(logprobs=True, top_logprobs=-1, max_tokens=1)
    assert [request.sampling.logprobs for request in site.engine.requests] == [VOCAB, VOCAB]


async def test_stream_with_echo_and_logprobs(site):
    reply = await site.complete(echo=True, logprobs=1, max_tokens=2, stream=True)
    found = [json.loads(line.removeprefix("data: ")) for line in reply.text.strip().split("\n\n")[:-1]]
    choices = [event["choices"][0] for event in found]
    assert "".join(choice["text"] for choice in choices) == "HiHe"
    assert [offset for choice in choices for offset in choice["logprobs"]["text_offset"]] == [0, 0, 1, 2, 3]


async def test_scoring_a_prompt_alone(site):
    body = (await site.complete(prompt=[72, 105], echo=True, logprobs=1, max_tokens=0)).json()
    assert body["choices"][0]["text"] == "Hi"
    assert body["choices"][0]["logprobs"]["token_logprobs"] == [None, -0.25]
    assert body["usage"]["completion_tokens"] == 0


@pytest.mark.row("F-147")
async def test_prompt_logprobs_stand_in_the_choice(site):
    body = (await site.complete(prompt=[72, 105], prompt_logprobs=0)).json()
    assert body["choices"][0]["prompt_logprobs"] == [
        None,
        {"105": {"logprob": -0.25, "rank": 1, "decoded_token": "i"}},
    ]


async def test_token_ids_are_returned_where_they_are_asked_for(site):
    body = (await site.complete(max_tokens=3, return_token_ids=True)).json()["choices"][0]
    assert body["prompt_token_ids"] == [BOS, 72, 105]
    assert body["token_ids"] == [*b"Hel"]
    assert "token_ids" not in (await site.complete(max_tokens=3)).json()["choices"][0]
    reply = await site.complete(max_tokens=3, return_token_ids=True, stream=True, n=2)
    found = [json.loads(line.removeprefix("data: "))["choices"][0] for line in reply.text.strip().split("\n\n")[:-1]]
    for index in range(2):
        mine = [choice for choice in found if choice["index"] == index]
        assert [token for choice in mine for token in choice["token_ids"]] == [*b"Hel"]
        assert [choice.get("prompt_token_ids") for choice in mine] == [[BOS, 72, 105], *[None] * (len(mine) - 1)]


async def test_prompts_are_truncated_on_either_side(site):
    for side, kept in (("left", [3, 4]), ("right", [1, 2])):
        await site.complete(prompt=[1, 2, 3, 4], truncate_prompt_tokens=2, truncation_side=side)
        assert list(site.engine.requests[-1].prompt.ids) == kept
    for side, kept in (("left", b"end"), ("right", b"a t")):
        await site.complete(prompt="a text and its end", truncate_prompt_tokens=4, truncation_side=side)
        assert site.engine.requests[-1].prompt.ids == (BOS, *kept)
    await site.complete(prompt=[*range(200)] * 4, truncate_prompt_tokens=-1, max_tokens=12)
    assert len(site.engine.requests[-1].prompt.ids) == 500


async def test_usage_of_every_stream(start):
    site = await start(force_include_usage=True)
    for reply in (await site.complete(stream=True), await site.chat(stream=True)):
        last = json.loads(reply.text.strip().split("\n\n")[-2].removeprefix("data: "))
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] > 0


async def test_load_in_a_header_for_balancers(site):
    site.engine.stats = Stats(kv_usage=0.5, waiting=2, running=3)
    headers = {"endpoint-load-metrics-format": "TEXT"}
    reply = await site.http.post("/v1/completions", json={"prompt": "Hi"}, headers=headers)
    assert reply.headers["endpoint-load-metrics"] == (
        "TEXT named_metrics.kv_cache_usage_perc=0.5, named_metrics.num_requests_waiting=2, "
        "named_metrics.num_requests_running=3"
    )
    headers = {"endpoint-load-metrics-format": "json"}
    reply = await site.http.post("/v1/completions", json={"prompt": "Hi", "stream": True}, headers=headers)
    form, _, report = reply.headers["endpoint-load-metrics"].partition(" ")
    assert (form, json.loads(report)["named_metrics"]["kv_cache_usage_perc"]) == ("JSON", 0.5)
    assert "endpoint-load-metrics" not in (await site.complete()).headers


@pytest.mark.row("F-738")
async def test_forms_of_vectors(site):
    expected = (3.0, 98.0, 0.5)
    for dtype, letter in (("float32", "f"), ("float16", "e")):
        for endianness, order in (("little", "<"), ("big", ">"), ("native", "=")):
            body = {"input": "ab", "encoding_format": "base64", "embed_dtype": dtype, "endianness": endianness}
            packed = base64.b64decode((await site.post("/v1/embeddings", **body)).json()["data"][0]["embedding"])
            assert struct.unpack(f"{order}3{letter}", packed) == expected
    body = {"input": "ab", "encoding_format": "base64", "embed_dtype": "bfloat16"}
    packed = base64.b64decode((await site.post("/v1/embeddings", **body)).json()["data"][0]["embedding"])
    halves = struct.unpack("<3H", packed)
    assert struct.unpack("<3f", struct.pack("<3I", *(half << 16 for half in halves))) == expected
    assert (await site.post("/v1/embeddings", input="ab", embed_dtype="float16")).status_code == 400


@pytest.mark.row("F-102", "F-127", "F-738")
async def test_embeddings(site):
    body = (await site.post("/v1/embeddings", input=["ab", "c"], model="fake")).json()
    assert [item["embedding"] for item in body["data"]] == [[3.0, 98.0, 0.5], [2.0, 99.0, 0.5]]
    assert body["usage"]["prompt_tokens"] == 5
    packed = (await site.post("/v1/embeddings", input=[1, 2], encoding_format="base64")).json()
    assert struct.unpack("<3f", base64.b64decode(packed["data"][0]["embedding"])) == (2.0, 2.0, 0.5)


async def test_tokenize_and_back(site):
    body = (await site.post("/tokenize", prompt="Hé", return_token_strs=True)).json()
    assert body["tokens"] == [BOS, *"Hé".encode()]
    assert (body["count"], body["max_model_len"]) == (4, 512)
    assert body["token_strs"][1] == "H"
    assert (await site.post("/detokenize", tokens=body["tokens"][1:])).json() == {"prompt": "Hé"}
    chat = (await site.post("/tokenize", messages=[{"role": "user", "content": "Hi"}])).json()
    assert bytes(chat["tokens"]) == b"<user>Hi\n<assistant>"
    bare = (await site.post("/tokenize", prompt="Hi", add_special_tokens=False)).json()
    assert bare["tokens"] == [72, 105]


@pytest.mark.row("F-343")
async def test_long_texts_are_tokenized_beside_the_loop(site):
    body = (await site.post("/tokenize", prompt="x" * 200_000)).json()
    assert body["count"] == 200_001


def encoding(**changes) -> FakeClient:
    return FakeClient(config=fake_config(encoded=EncodedText(start=3, forced=(4,), vocab_size=VOCAB), **changes))


@pytest.mark.row("F-350")
@pytest.mark.parametrize(
    ("asked", "ids", "text"),
    [({}, (3, 4), None), ({"decoder_prompt": "so"}, (3, *b"so"), "so"), ({"decoder_prompt": [3, 9]}, (3, 9), None)],
)
async def test_a_prompt_is_encoded_and_its_answer_begins_as_asked(start, asked, ids, text):
    site = await start(encoding())
    reply = await site.complete(prompt=["Hi", "Hello"], **asked)
    (request,) = site.engine.requests
    assert [prompt.ids for prompt in request.prompts] == [ids, ids]
    assert [encoded_ids(prompt) for prompt in request.prompts] == [(BOS, *b"Hi"), (BOS, *b"Hello")]
    assert [(prompt.text, prompt.encoder_text) for prompt in request.prompts] == [(text, "Hi"), (text, "Hello")]
    assert reply.json()["usage"]["prompt_tokens"] == 3 + 6 + 2 * len(ids)


async def test_a_decoders_prompt_is_refused_where_there_is_nothing_for_it(site, start):
    reply = await site.complete(decoder_prompt="so")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "decoder_prompt")
    encoder = await start(encoding())
    for asked, param in (
        ({"decoder_prompt": [VOCAB]}, "decoder_prompt"),
        ({"decoder_prompt": "so", "truncate_prompt_tokens": 1}, "truncate_prompt_tokens"),
    ):
        reply = await encoder.complete(**asked)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    reply = await encoder.post("/v1/embeddings", input="Hi")
    assert reply.status_code == 400
    assert "makes no vectors" in reply.json()["error"]["message"]


async def test_a_conversation_is_encoded(start):
    site = await start(encoding())
    await site.chat()
    (request,) = site.engine.requests
    assert request.prompt.ids == (3, 4)
    assert request.prompt.encoder_text


@pytest.mark.row("F-227")
async def test_without_a_tokenizer_prompts_and_answers_are_ids(start, tmp_path):
    engine = FakeClient()
    engine.tokenizer = NoTokenizer(tmp_path)
    site = await start(engine)
    reply = await site.complete(prompt=[5, 6], max_tokens=3, return_token_ids=True)
    (choice,) = reply.json()["choices"]
    assert (choice["text"], choice["token_ids"], choice["prompt_token_ids"]) == ("", list(b"Hel"), [5, 6])
    refusals = {
        "give prompts as token ids": await site.complete(prompt="Hi"),
        "stop is about text": await site.complete(prompt=[5], stop="x"),
        "tokens is about text": await site.post("/detokenize", tokens=[5]),
        "no chat template": await site.chat(),
    }
    for words, refused in refusals.items():
        assert refused.status_code == 400
        assert words in refused.json()["error"]["message"]
