"""Kernels that a request would wait for: none is compiled once the engine has started."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv_testing.tiny import tiny

pytestmark = pytest.mark.skipif(
    os.environ["TRITON_INTERPRET"] != "1", reason="kernels are compiled for a GPU in this process"
)

ASKED: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8, "top_p": 0.7, "top_k": 4, "min_p": 0.1, "seed": 1},
    {"temperature": 0.8, "repetition_penalty": 1.2, "presence_penalty": 0.5, "logit_bias": {5: 2.0}},
    {"temperature": 0.0, "logprobs": 3, "min_tokens": 2},
    {"temperature": 0.0, "allowed_token_ids": [5, 6, 7], "bad_words": ["a"]},
)


Key = tuple[Any, ...]
"""A kernel's name with what its binary is compiled for: constants, the kinds of its arguments, and the launch."""


@contextmanager
def record() -> Iterator[set[Key]]:
    """The keys of all launches inside. Raises ``ImportError`` where there is no Triton."""
    from triton.runtime.interpreter import InterpretedFunction

    keys: set[Key] = set()
    run = InterpretedFunction.run

    def recorded(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        keys.add(key_of(kernel, args, kwargs))
        return run(kernel, *args, grid=grid, warmup=warmup, **kwargs)

    InterpretedFunction.run = recorded
    try:
        yield keys
    finally:
        InterpretedFunction.run = run


def key_of(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key:
    """As the launcher of ``triton.runtime.jit`` finds a compiled kernel again."""
    from triton.backends.compiler import BaseBackend
    from triton.runtime.jit import native_specialize_impl

    signature = inspect.signature(kernel.fn)
    own = {name: value for name, value in kwargs.items() if name in signature.parameters}
    bound = signature.bind(*args, **own)
    bound.apply_defaults()
    parts: list[Any] = [kernel.fn.__name__]
    for place, (name, value) in enumerate(bound.arguments.items()):
        if "constexpr" in str(signature.parameters[name].annotation):
            parts.append((name, str(value)))
            continue
        plain, unaligned = (
            bool({name, place} & set(kernel.kwargs.get(listed) or ()))
            for listed in ("do_not_specialize", "do_not_specialize_on_alignment")
        )
        parts.append((name, native_specialize_impl(BaseBackend, value, False, not plain, not unaligned)))
    return (*parts, *sorted((name, str(value)) for name, value in kwargs.items() if name not in own))


@pytest.mark.slow
@pytest.mark.parametrize("eager", [False, True])
def test_no_kernel_is_compiled_while_serving(tmp_path: Path, eager: bool) -> None:
    """Prompts of several lengths, alone and beside rows that are decoded; greedy, drawn, edited, described."""
    checkpoint = tiny("llama", tmp_path, tokenizer=True, num_hidden_layers=1)
    options: dict[str, Any] = {
        "platform": "cuda", "emulate": True, "triton_interpret": True, "attention_backend": "triton-paged",
        "dtype": "float32", "max_model_len": 32, "max_num_seqs": 4, "max_num_batched_tokens": 24,
        "num_gpu_blocks_override": 64, "enforce_eager": eager,
    }  # fmt: skip
    prompts = [{"prompt_token_ids": list(range(40, 40 + length))} for length in (1, 7, 16, 17, 3)]
    params = [SamplingParams(max_tokens=3, ignore_eos=True, **some) for some in ASKED]
    with record() as keys, LLM(str(checkpoint), **options) as llm:
        warm = set(keys)
        llm.generate(prompts, params)
        late = keys - warm
    assert not late, sorted(late)
