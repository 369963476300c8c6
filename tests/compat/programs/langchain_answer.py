"""LangChain's class for vLLM: a completion, and a chain with a prompt."""

import json
import sys

from langchain_community.llms import VLLM
from langchain_core.prompts import PromptTemplate

llm = VLLM(
    model=sys.argv[1],
    trust_remote_code=True,
    max_new_tokens=12,
    top_k=10,
    top_p=0.95,
    temperature=0.0,
    tensor_parallel_size=1,
    vllm_kwargs={"max_model_len": 512, "gpu_memory_utilization": 0.1},
)
chain = PromptTemplate.from_template("The capital of {country} is") | llm.bind(stop=["."])
print(json.dumps([llm.invoke("The capital of France is"), chain.invoke({"country": "Spain"})]))
