"""Vectors, labels and scores over HTTP: the shapes that clients know, and bodies that ask for too much or nothing."""

import base64
import pydoc
import struct
import threading

import pytest

from lsv.request.pooling import Pooler
from lsv_api.limits import Limits
from lsv_testing.fakes.client import BOS, EOS, FakeClient, fake_config

EMBEDS = Pooler(task="embed", kind="mean", size=3, prompts={"query": "ask: "})
CLASSIFIES = Pooler(task="classify", labels=("no", "maybe", "yes"), activation="softmax")
RERANKS = Pooler(task="classify", labels=("relevant",), activation="sigmoid")
REWARDS = Pooler(task="reward", labels=("a", "b", "c"), step_token=ord("."))


def engine(pooler):
    return FakeClient(fake_config(pooler=pooler))


@pytest.mark.row("F-102", "F-127", "F-738", "F-736")
async def test_embeddings_by_the_official_client(start):
    site = await start(engine(EMBEDS))
    found = await site.openai.embeddings.create(model="fake", input=["ab", "c"])  # the client asks for base64
    assert [one.embedding for one in found.data] == [[3.0, 98.0, 0.5], [2.0, 99.0, 0.5]]
    assert found.usage.prompt_tokens == 5
    ids = await site.openai.embeddings.create(model="fake", input=[[7, 8], [9]], encoding_format="float")
    assert [one.embedding for one in ids.data] == [[2.0, 8.0, 0.5], [1.0, 9.0, 0.5]]


@pytest.mark.parametrize(
    ("pooler", "route", "body", "kept"),
    [
        (EMBEDS, "/v1/embeddings", {"input": "a long text"}, (BOS, *b"a l")),
        (EMBEDS, "/pooling", {"input": "a long text"}, (BOS, *b"a l")),
        (EMBEDS, "/pooling", {"input": [BOS, *b"a long text"]}, (BOS, *b"a l")),
        (EMBEDS, "/pooling", {"input": "a long text", "truncation_side": "left"}, (BOS, *b"ext")),
        (EMBEDS, "/score", {"text_1": "a", "text_2": "a long text"}, (BOS, *b"a l")),
        (EMBEDS, "/rerank", {"query": "a", "documents": ["a long text"]}, (BOS, *b"a l")),
        (CLASSIFIES, "/classify", {"input": "a long text"}, (BOS, *b"a l")),
        (RERANKS, "/score", {"text_1": "a", "text_2": "a long text"}, (*b"a", EOS, *b"a ")),
        (RERANKS, "/rerank", {"query": "a", "documents": ["a text"], "truncation_side": "left"}, tuple(b"text")),
    ],
)
async def test_a_long_text_is_read_from_its_beginning(start, pooler, route, body, kept):
    site = await start(engine(pooler))
    assert (await site.post(route, truncate_prompt_tokens=4, **body)).status_code == 200
    assert site.engine.requests[-1].prompts[-1].ids == kept


async def test_prompts_of_the_model_go_before_texts(start):
    site = await start(engine(EMBEDS))
    await site.post("/v1/embeddings", input="b", prompt_name="query")
    assert bytes(site.engine.requests[-1].prompt.ids[1:]) == b"ask: b"
    answer = await site.post("/v1/embeddings", input="b", prompt_name="other")
    assert answer.status_code == 400
    assert "query" in answer.json()["error"]["message"]


async def test_dimensions_are_for_models_trained_for_them(start):
    site = await start(engine(EMBEDS))
    answer = await site.post("/v1/embeddings", input="b", dimensions=2)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "dimensions"
    site = await start(engine(Pooler(task="embed", size=3, dimensions=(1, 2))))
    assert (await site.post("/v1/embeddings", input="b", dimensions=2)).status_code == 200
    assert site.engine.requests[-1].pooling.dimensions == 2
    for wrong in (0, 3, -1):
        assert (await site.post("/v1/embeddings", input="b", dimensions=wrong)).status_code == 400
    site = await start(engine(Pooler(task="embed", size=3, dimensions=())))
    assert (await site.post("/v1/embeddings", input="b", dimensions=4)).status_code == 400


@pytest.mark.row("F-740")
async def test_classify(start):
    site = await start(engine(CLASSIFIES))
    answer = (await site.post("/classify", input=["ab", "c"])).json()
    assert answer["object"] == "list"
    assert answer["id"].startswith("classify-")
    assert answer["data"][0] == {"index": 0, "label": "maybe", "probs": [3.0, 98.0, 0.5], "num_classes": 3}
    assert answer["usage"]["total_tokens"] == 5


@pytest.mark.row("F-103", "F-128", "F-737", "F-739", "F-1015")
@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
async def test_rerank(start, path):
    site = await start(engine(RERANKS))
    answer = (await site.post(path, query="ab", documents=["c", "def", "gh"], top_n=2)).json()
    assert [(one["index"], one["relevance_score"]) for one in answer["results"]] == [(1, 6.0), (2, 5.0)]
    assert answer["results"][0]["document"] == {"text": "def"}
    assert answer["usage"]["total_tokens"] == 4 + 6 + 5
    (request,) = site.engine.requests
    assert [prompt.second for prompt in request.prompts] == [3, 3, 3]
    assert request.prompts[0].ids == (*b"ab", EOS, *b"c")
    bare = await site.post(path, query="ab", documents=["c"], return_documents=False)
    assert "document" not in bare.json()["results"][0]


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
async def test_score(start, path):
    site = await start(engine(RERANKS))
    answer = (await site.post(path, text_1=["a", "bcd"], text_2=["c", "e"])).json()
    assert [(one["index"], one["object"], one["score"]) for one in answer["data"]] == [
        (0, "score", 3.0),
        (1, "score", 5.0),
    ]
    one = (await site.post(path, text_1="a", text_2="c")).json()
    assert len(one["data"]) == 1


async def test_models_that_embed_score_by_their_vectors(start):
    site = await start(engine(EMBEDS))
    answer = (await site.post("/score", text_1="ab", text_2=["c", "d"])).json()
    first, seconds = (3.0, 98.0, 0.5), ((2.0, 99.0, 0.5), (2.0, 100.0, 0.5))
    expected = [sum(a * b for a, b in zip(first, second, strict=True)) for second in seconds]
    assert [one["score"] for one in answer["data"]] == pytest.approx(expected)
    assert site.engine.requests[-1].pooling.normalize is True
    assert site.engine.requests[-1].prompts[0].ids[0] == BOS


async def test_pooling_gives_a_vector_a_token(start):
    site = await start(engine(EMBEDS))
    answer = (await site.post("/pooling", input="ab")).json()
    assert answer["data"][0]["data"] == [[3.0, 98.0, 0.5]] * 3
    assert (await site.post("/pooling", input="ab", task="embed")).json()["data"][0]["data"] == [3.0, 98.0, 0.5]
    packed = (await site.post("/pooling", input="ab", encoding_format="base64")).json()["data"][0]["data"]
    assert struct.unpack("<9f", base64.b64decode(packed)) == (3.0, 98.0, 0.5) * 3


async def test_rewards_of_steps_are_those_of_the_tokens_that_end_them(start):
    site = await start(engine(REWARDS))
    answer = (await site.post("/pooling", input="a.bc.")).json()
    assert len(answer["data"][0]["data"]) == 2


@pytest.mark.row("F-741", "F-243")
async def test_errors_and_cards_say_what_a_model_can_do(start):
    site = await start(engine(CLASSIFIES))
    assert (await site.http.get("/v1/models")).json()["data"][0]["tasks"] == ["classify"]
    refused = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
        "/v1/completions": {"prompt": "Hi"},
        "/v1/embeddings": {"input": "Hi"},
        "/score": {"text_1": "a", "text_2": "b"},
        "/rerank": {"query": "a", "documents": ["b"]},
        "/pooling": {"input": "a", "task": "token_embed"},
    }
    for path, body in refused.items():
        answer = await site.post(path, **body)
        assert answer.status_code == 400, path
        assert "it can classify texts" in answer.json()["error"]["message"]
    site = await start()
    assert (await site.http.get("/v1/models")).json()["data"][0]["tasks"][:2] == ["generate", "embed"]
    assert (await site.post("/classify", input="a")).status_code == 400


HOSTILE = {
    "/rerank": [
        {"query": "a", "documents": []},
        {"query": "a", "documents": ["b"] * 1025},
        {"query": "a", "documents": "b"},
        {"query": "a", "documents": [1]},
        {"query": "a", "documents": ["b"], "top_n": -1},
        {"query": "a" * 600, "documents": ["b"]},
    ],
    "/score": [
        {"text_1": [], "text_2": []},
        {"text_1": ["a", "b"], "text_2": ["c"]},
        {"text_1": "a", "text_2": ["b"] * 1025},
        {"text_1": "a", "text_2": "b" * ((1 << 20) + 1)},
        {"text_1": "a"},
    ],
    "/classify": [
        {"input": []},
        {"input": ["a"] * 1025},
        {"input": [[]]},
        {"input": [["a"]]},
        {"input": "a" * 600},
        {},
    ],
    "/pooling": [{"input": []}, {"input": [-1]}, {"input": "a", "task": "win"}, {"input": {"a": 1}}],
}


@pytest.mark.parametrize("path", HOSTILE)
async def test_hostile_bodies_are_refused(start, path):
    reranks, classifies = await start(engine(RERANKS)), await start(engine(CLASSIFIES))
    site = classifies if path in ("/classify", "/pooling") else reranks
    for body in HOSTILE[path]:
        answer = await site.post(path, **body)
        assert answer.status_code == 400, body
        assert answer.json()["error"]["message"]
    assert not site.engine.requests


async def test_answers_of_token_vectors_are_bounded(start):
    site = await start(engine(Pooler(task="embed", size=1 << 20)))
    answer = await site.post("/pooling", input="abcdefgh")
    assert answer.status_code == 400
    assert "too many for one answer" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling", "/score", "/rerank"])
async def test_requests_for_vectors_have_priorities_and_salts(start, path):
    site = await start(engine(EMBEDS))
    texts = {"/score": {"text_1": "a", "text_2": "b"}, "/rerank": {"query": "a", "documents": ["b"]}}
    body = texts.get(path, {"input": "a"})
    await site.post(path, **body)
    await site.post(path, **body, priority=3, cache_salt="mine")
    plain, asked = site.engine.requests
    assert (plain.priority, plain.salt) == (0, b"")
    assert asked.priority == 3
    assert asked.salt
    assert (await site.post(path, **body, priority=1 << 40)).json()["error"]["param"] == "priority"
    for field, value in (("padding", "max_length"), ("max_tokens_per_doc", 9)):
        assert (await site.post(path, **body, **{field: value})).json()["error"]["param"] == field


async def test_use_activation_says_whether_vectors_are_scaled(start):
    site = await start(engine(EMBEDS))
    await site.post("/v1/embeddings", input="a", use_activation=False)
    assert site.engine.requests[-1].pooling.normalize is False
    both = await site.post("/v1/embeddings", input="a", use_activation=False, normalize=True)
    assert both.json()["error"]["param"] == "normalize"


async def test_pooled_vectors_are_packed_as_asked(start):
    site = await start(engine(EMBEDS))
    asked = {"input": "ab", "embed_dtype": "float16", "endianness": "big"}
    packed = (await site.post("/pooling", **asked, encoding_format="base64")).json()["data"][0]["data"]
    assert struct.unpack(">9e", base64.b64decode(packed)) == (3.0, 98.0, 0.5) * 3
    assert (await site.post("/pooling", **asked)).json()["error"]["param"] == "embed_dtype"


async def test_long_answers_are_written_beside_the_event_loop(start, monkeypatch):
    monkeypatch.setattr("lsv_api.preparing.SHORT", 0)
    threads = []

    def watch(place):
        own = pydoc.locate(place)
        monkeypatch.setattr(place, lambda *given: threads.append((place, threading.current_thread())) or own(*given))

    watched = (
        "lsv_api.pooling.routes.json_response",
        "lsv_api.pooling.scoring._product",
        "lsv_api.openai.asking.read_tools",
        "lsv_api.openai.generation.json_response",
    )
    for place in watched:
        watch(place)
    site = await start(engine(EMBEDS))
    await site.post("/pooling", input="ab")
    await site.post("/score", text_1="a", text_2="b")
    site = await start(FakeClient())
    await site.chat(logprobs=True)
    await site.complete(logprobs=1)
    assert {place for place, _ in threads} == set(watched)
    assert [place for place, _ in threads].count(watched[-1]) == 2  # a chat's and a completion's
    assert all(thread is not threading.main_thread() for _, thread in threads)


async def test_a_conversation_is_embedded(start):
    site = await start(engine(EMBEDS))
    shown = [{"role": "user", "content": "ab"}]
    answer = await site.post("/v1/embeddings", messages=shown)
    assert answer.status_code == 200
    assert bytes(site.engine.requests[-1].prompt.ids) == b"<user>ab"
    await site.post("/v1/embeddings", messages=shown, add_generation_prompt=True)
    assert bytes(site.engine.requests[-1].prompt.ids) == b"<user>ab\n<assistant>"
    for path, pooler in (("/pooling", EMBEDS), ("/classify", CLASSIFIES)):
        site = await start(engine(pooler))
        assert (await site.post(path, messages=shown)).status_code == 200
        assert bytes(site.engine.requests[-1].prompt.ids) == b"<user>ab"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling", "/classify"])
@pytest.mark.parametrize("body", [{}, {"input": "a", "messages": [{"role": "user", "content": "b"}]}], ids=str)
async def test_a_body_has_either_input_or_messages(start, path, body):
    site = await start(engine(CLASSIFIES if path == "/classify" else EMBEDS))
    error = (await site.post(path, **body)).json()["error"]
    assert (error["message"], error["param"]) == ("give either input or messages", "input")
    assert not site.engine.requests


async def test_prompts_of_the_model_do_not_go_before_conversations(start):
    site = await start(engine(EMBEDS))
    answer = await site.post("/v1/embeddings", messages=[{"role": "user", "content": "b"}], prompt_name="query")
    assert answer.json()["error"]["param"] == "prompt_name"


async def test_a_text_over_the_context_is_read_in_pieces(start):
    site = await start(FakeClient(fake_config(pooler=EMBEDS, max_model_len=5)))
    text = "abcdefghij"
    assert (await site.post("/v1/embeddings", input=text)).json()["error"]["code"] == "context_length_exceeded"
    answer = (await site.post("/v1/embeddings", input=[text, "x"], enable_chunked_processing=True)).json()
    request = site.engine.requests[-1]
    assert [prompt.ids for prompt in request.prompts] == [
        (BOS, *b"abcd"), (BOS, *b"efgh"), (BOS, *b"ij"), (BOS, *b"x"),
    ]  # fmt: skip
    assert request.pooling.normalize is False
    assert answer["usage"]["prompt_tokens"] == 5 + 5 + 3 + 2
    mean = [(5 * 5 + 5 * 5 + 3 * 3) / 13, (5 * ord("d") + 5 * ord("h") + 3 * ord("j")) / 13, 0.5]
    length = sum(value * value for value in mean) ** 0.5
    assert answer["data"][0]["embedding"] == pytest.approx([value / length for value in mean])
    answer = (await site.post("/v1/embeddings", input=text, enable_chunked_processing=True, normalize=False)).json()
    assert answer["data"][0]["embedding"] == pytest.approx(mean)


async def test_the_operator_has_long_texts_read_in_pieces(start):
    pooler = Pooler(task="embed", kind="mean", size=3, pieces=True, longest=12)
    site = await start(FakeClient(fake_config(pooler=pooler, max_model_len=5)))
    assert (await site.post("/v1/embeddings", input="abcdefgh")).status_code == 200
    assert len(site.engine.requests[-1].prompts) == 2
    for field in ({"enable_chunked_processing": False}, {"input": "a" * 20}):
        assert (await site.post("/v1/embeddings", **{"input": "abcdefgh", **field})).status_code == 400
    cut = await site.post("/v1/embeddings", input="abcdefgh", truncate_prompt_tokens=3)
    assert cut.status_code == 200
    assert len(site.engine.requests[-1].prompts) == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"truncate_prompt_tokens": 3}, "leave out truncate_prompt_tokens"),
        ({"input": None, "messages": [{"role": "user", "content": "b"}]}, "leave out messages"),
        ({"input": ["abcdefgh"] * 3}, "6 pieces of at most 5 tokens"),
    ],
    ids=str,
)
async def test_pieces_that_can_not_be(start, more, message):
    site = await start(FakeClient(fake_config(pooler=EMBEDS, max_model_len=5)), limits=Limits(prompts=4))
    body = {"input": "abcdefgh", "enable_chunked_processing": True, **more}
    answer = await site.post("/v1/embeddings", **{name: value for name, value in body.items() if value is not None})
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


async def test_content_parts_are_scored_by_models_that_embed(start):
    site = await start(engine(EMBEDS))
    parts = {"content": [{"type": "text", "text": "cd"}]}
    answer = await site.post("/score", text_1="ab", text_2=[parts, "ef"])
    assert answer.status_code == 200
    first, second, third = site.engine.requests[-1].prompts
    assert (first.ids, bytes(second.ids), third.ids) == ((BOS, *b"ab"), b"<user>cd", (BOS, *b"ef"))
    answer = (await site.post("/rerank", query=parts, documents=["ab", parts])).json()
    assert sorted(one["document"]["text"] for one in answer["results"]) == ["ab", "cd"]


async def test_content_parts_that_can_not_be_scored(start):
    picture = {"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}
    site = await start(engine(EMBEDS))
    error = (await site.post("/score", text_1="ab", text_2=["c", picture])).json()["error"]
    assert error["param"] == "text_2[1].content[0]"
    assert error["message"].startswith("text_2[1].content[0]: this model takes text, but no image")
    assert (await site.post("/rerank", query=picture, documents=["c"])).json()["error"]["param"] == "query.content[0]"
    site = await start(engine(RERANKS))
    error = (await site.post("/rerank", query="ab", documents=[{"content": ["c"]}])).json()["error"]
    assert "send texts instead of content parts" in error["message"]
