"""What GRPO's trainer of TRL generates with: answers with processed log probabilities, held to the model's own."""

import json
import sys

import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.generation.vllm_generation import VLLMGeneration

TEMPERATURE, TOP_K = 0.7, 5
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
generation = VLLMGeneration(
    model,
    Accelerator(cpu=True),
    tokenizer,
    mode="colocate",
    gpu_memory_utilization=0.1,
    max_model_length=256,
    max_num_seqs=4,
    temperature=TEMPERATURE,
    top_k=TOP_K,
    max_completion_length=6,
)
prompts = [tokenizer(text).input_ids for text in ("Hello", "What is it?")]
asked, answers, logprobs, ids = generation.generate(prompts, None, 1)
off = 0.0
for prompt, answer, shown in zip(prompts, answers, logprobs, strict=True):
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1] / TEMPERATURE
    logits[logits < logits.topk(TOP_K).values[:, -1:]] = float("-inf")
    expected = logits.log_softmax(-1).gather(-1, torch.tensor([*answer]).unsqueeze(-1)).squeeze(-1)
    off = max(off, (torch.tensor(shown).squeeze(-1) - expected).abs().max().item())
try:
    generation.sync_weights()
    refusal = ""
except AttributeError as error:
    refusal = str(error)
print(json.dumps({"asked": asked, "answers": answers, "ids": ids, "off": off, "refusal": refusal}))
