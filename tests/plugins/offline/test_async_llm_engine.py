"""The asynchronous engine as scripts use it: its own process, several requests at a time, the end."""

from __future__ import annotations

import asyncio

import pytest

import lsv_demo
from lsv import AsyncEngineArgs, AsyncLLMEngine, LoRARequest, PoolingParams, SamplingParams
from lsv.request.output_kind import RequestOutputKind
from lsv_base.errors import BadRequest, EngineDied, LsvError

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


async def last(outputs):
    found = [output async for output in outputs]
    return found[-1], len(found)


@pytest.mark.row("F-080", "F-081", "F-082", "F-083", "F-084", "F-085", "F-087", "F-088", "F-089", "F-090")
async def test_requests_of_a_script():
    args = AsyncEngineArgs(
        model="lsv-demo", max_num_seqs=8, max_model_len=512, disable_log_requests=True, enable_lora=True
    )
    async with AsyncLLMEngine.from_engine_args(args) as engine:
        await engine.check_health()
        answers = await asyncio.gather(*(last(engine.generate("Hello", GREEDY, str(n))) for n in range(3)))
        assert engine.is_running
        assert len({output.outputs[0].text for output, _ in answers}) == 1
        assert all(output.finished and count > 1 for output, count in answers), "they come as they grow"

        (vector, _) = await last(engine.encode({"prompt": "Hello"}, PoolingParams(), "v", None, {"traceparent": "x"}))
        assert len(vector.outputs.embedding) > 8

        final = GREEDY.replace(output_kind=RequestOutputKind.FINAL_ONLY)
        (whole, count) = await last(engine.generate(prompt="Hello", sampling_params=final, request_id="final"))
        assert (whole.outputs[0].text, count) == (answers[0][0].outputs[0].text, 1)

        pirate = LoRARequest("pirate", 1, lsv_demo.PIRATE)
        adapted = (last(engine.generate("Where does Mira live?", GREEDY, f"p{n}", pirate)) for n in range(3))
        assert len({output.outputs[0].text for output, _ in await asyncio.gather(*adapted)}) == 1

        long = engine.generate("Hello", GREEDY.replace(max_tokens=400), "long")
        first = await anext(long)
        with pytest.raises(BadRequest, match="lora_request must be LoRARequest"):
            await anext(engine.generate("Hello", GREEDY, "adapted", object()))
        with pytest.raises(BadRequest, match="under way"):
            await anext(engine.generate("Hello", GREEDY, "long"))
        await engine.abort("long")
        end, _ = await last(long)
        assert (first.finished, end.finished, end.outputs[0].finish_reason) == (False, True, "abort")
        await engine.abort("long")

        async for _ in engine.generate("Hello", GREEDY.replace(max_tokens=400), "left"):
            break  # a client that has gone
        assert (await engine.get_model_config()).max_model_len == engine.model_config.max_model_len == 512
        assert (await engine.get_parallel_config()).tensor_parallel_size == 1
        assert (await engine.get_scheduler_config()).max_num_seqs == 8
        assert await engine.get_lora_config() is None
        assert await engine.get_tokenizer() is engine.tokenizer
        assert engine.tokenizer.encode("Hello")
        assert engine.limit_concurrency is None
        engine.shutdown_background_loop()
        with pytest.raises(LsvError):
            await last(engine.generate("Hello", GREEDY, "after"))
    with pytest.raises(EngineDied):
        await engine.check_health()


@pytest.mark.row("F-227")
async def test_an_engine_without_a_tokenizer():
    args = AsyncEngineArgs(model="lsv-demo", max_model_len=128, skip_tokenizer_init=True)
    async with AsyncLLMEngine.from_engine_args(args) as engine:
        output, _ = await last(engine.generate({"prompt_token_ids": [5, 6, 7]}, GREEDY, "a"))
        assert (output.outputs[0].text, len(output.outputs[0].token_ids)) == ("", 8)
        with pytest.raises(BadRequest, match="stop is about text"):
            await anext(engine.generate({"prompt_token_ids": [5]}, GREEDY.replace(stop=["x"]), "b"))
