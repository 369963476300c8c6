"""LlamaIndex's class for vLLM: a completion and a chat."""

import json
import sys

from llama_index.core.llms import ChatMessage
from llama_index.llms.vllm import Vllm

llm = Vllm(
    model=sys.argv[1],
    tensor_parallel_size=1,
    max_new_tokens=12,
    temperature=0.0,
    messages_to_prompt=lambda messages: messages[0].content or "",
    vllm_kwargs={"swap_space": 1, "gpu_memory_utilization": 0.1, "max_model_len": 512},
)
chat = llm.chat([ChatMessage(role="user", content="The capital of Spain is")])
print(json.dumps([llm.complete("The capital of France is").text, chat.message.content]))
