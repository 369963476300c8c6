"""MinerU's clients for vLLM's engines, one called and one awaited, with its logits processor."""

import asyncio
import json
import sys

from mineru_vl_utils import MinerUClient, MinerULogitsProcessor, MinerUSamplingParams
from PIL import Image
from vllm import LLM
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM

SIZE = {"max_model_len": 256, "gpu_memory_utilization": 0.1, "logits_processors": [MinerULogitsProcessor]}
PICTURE = Image.new("RGB", (56, 56), (200, 10, 10))
plain = MinerUSamplingParams(temperature=0.0, max_new_tokens=48)
varied = MinerUSamplingParams(temperature=0.0, max_new_tokens=48, no_repeat_ngram_size=2)


async def read_awaited() -> list[str]:
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=sys.argv[1], **SIZE))
    await engine.get_tokenizer()
    client = MinerUClient(backend="vllm-async-engine", vllm_async_llm=engine).client
    try:
        return [await client.aio_predict(PICTURE, "\nText Recognition:", params) for params in (plain, varied)]
    finally:
        await engine.close()


with LLM(model=sys.argv[1], **SIZE) as llm:
    client = MinerUClient(backend="vllm-engine", vllm_llm=llm, use_tqdm=True).client
    called = client.batch_predict([PICTURE, PICTURE], "\nText Recognition:", [plain, varied])
    scored = client.predict_scored(PICTURE, "\nText Recognition:", varied)
print(json.dumps({"called": called, "awaited": asyncio.run(read_awaited()), "scored": scored.token_ids}))
