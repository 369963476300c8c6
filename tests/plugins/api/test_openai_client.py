"""The official client works unchanged."""

from __future__ import annotations

import asyncio

import openai
import pytest

from lsv_base.errors import Overloaded

USER = [{"role": "user", "content": "Hi"}]


async def in_thread(site, use):
    """Run the synchronous client beside the server's event loop."""
    client = openai.OpenAI(base_url=f"{site.server.address}/v1", api_key="EMPTY", max_retries=0)
    with client:
        return await asyncio.to_thread(use, client)


@pytest.mark.row("F-109", "F-125")
async def test_chat(site):
    reply = await site.openai.chat.completions.create(model="fake", messages=USER, logprobs=True, top_logprobs=2)
    assert reply.choices[0].message.content == "Hello, world."
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].logprobs.content[0].top_logprobs[1].token == "I"
    assert reply.usage.prompt_tokens_details.cached_tokens == 16


@pytest.mark.row("F-109", "F-162")
async def test_chat_stream(site):
    stream = await site.openai.chat.completions.create(
        model="fake", messages=USER, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hello, world."
    assert chunks[-1].usage.completion_tokens == 14
    assert chunks[-1].choices == []


async def test_stream_helper(site):
    async with site.openai.chat.completions.stream(model="fake", messages=USER) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "Hello, world."


@pytest.mark.row("F-109")
async def test_completions(site):
    reply = await site.openai.completions.create(model="fake", prompt=["a", "b"], logprobs=2, max_tokens=4)
    assert [choice.text for choice in reply.choices] == ["Hell", "Hell"]
    assert reply.choices[0].logprobs.tokens == list("Hell")
    stream = await site.openai.completions.create(model="fake", prompt="a", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello, world."


@pytest.mark.row("F-109")
async def test_extra_body(site):
    extra = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2, "ignore_eos": True}
    await site.openai.chat.completions.create(model="fake", messages=USER, extra_body=extra)
    assert site.engine.requests[0].sampling.top_k == 5


@pytest.mark.row("F-099", "F-102", "F-109", "F-127")
async def test_models_and_embeddings(site):
    models = await site.openai.models.list()
    assert [model.id for model in models.data] == ["fake"]
    assert (await site.openai.models.retrieve("fake")).id == "fake"
    # The client asks for base64 by itself and unpacks it.
    reply = await site.openai.embeddings.create(model="fake", input=["ab"])
    assert reply.data[0].embedding == [3.0, 98.0, 0.5]


async def test_synchronous_client(site):
    def use(client):
        whole = client.chat.completions.create(model="fake", messages=USER).choices[0].message.content
        stream = client.chat.completions.create(model="fake", messages=USER, stream=True)
        return whole, "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert await in_thread(site, use) == ("Hello, world.", "Hello, world.")


@pytest.mark.row("F-113")
async def test_errors(site, start):
    with pytest.raises(openai.NotFoundError) as missing:
        await site.openai.chat.completions.create(model="gpt", messages=USER)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        await site.openai.chat.completions.create(model="fake", messages=USER, temperature=-1)
    assert bad.value.param == "temperature"
    site.engine.failure = Overloaded("the queue is full")
    with pytest.raises(openai.RateLimitError):
        await site.openai.chat.completions.create(model="fake", messages=USER)
    locked = await start(api_keys=("secret",))
    with pytest.raises(openai.AuthenticationError):
        await locked.openai.models.list()


async def test_error_inside_a_stream(site):
    site.engine.failure, site.engine.fail_after = Overloaded("preempted for good"), 3
    stream = await site.openai.chat.completions.create(model="fake", messages=USER, stream=True)
    with pytest.raises(openai.APIError, match="preempted for good"):
        async for _ in stream:
            pass


async def test_leaving_a_stream(site):
    site.engine.answer, site.engine.pace = "x" * 300, 0.01
    stream = await site.openai.chat.completions.create(model="fake", messages=USER, stream=True)
    async for _ in stream:
        break
    await stream.close()
    async with asyncio.timeout(5):
        while not site.engine.aborted:
            await asyncio.sleep(0.01)
