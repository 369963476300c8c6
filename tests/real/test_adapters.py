"""An adapter on real weights, against PEFT."""

from __future__ import annotations

from lsv import LLM, LoRARequest
from published.checks import ask, find_differences
from published.golden import read_golden
from published.models import Published

TOLERANCE = 5e-4
"""A random adapter doubles the size of many states, and with it what rounding does."""


def test_half_of_a_batch_has_an_adapter(published: Published) -> None:
    golden = read_golden("smollm2")
    plain, adapted = golden.answers[: len(golden.adapted)], golden.adapted
    assert all(one.tokens != other.tokens for one, other in zip(plain, adapted, strict=True))
    request = LoRARequest("mine", 1, str(published.adapter()))
    options = {"dtype": "float32", "max_model_len": 512, "cpu_kvcache_space": 1}
    with LLM(str(published.plain_smollm2()), enable_lora=True, max_lora_rank=8, lora_dtype="float32", **options) as llm:
        outputs = ask(llm, [*plain, *adapted], lora_request=[None] * len(plain) + [request] * len(adapted))
    assert list(find_differences([*plain, *adapted], outputs, TOLERANCE)) == []
