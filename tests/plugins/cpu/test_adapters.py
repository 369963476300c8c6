"""Adapters on the CPU: the native op, and requests through whole engines, each of which gets what it gets alone."""

import re
import threading
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lsv import LLM, LoRARequest, SamplingParams
from lsv.adapters.orders import ReadAdapter
from lsv.adapters.peft import digest
from lsv.request.structured import StructuredOutputsParams
from lsv_base.errors import BadRequest, CheckpointError, ConfigError, NotYet
from lsv_cpu import native
from lsv_cpu.adapters import NativeAdapters
from lsv_models.llama import LlamaLayer
from lsv_runtime.adapters import store
from lsv_runtime.adapters.checkpoint import read_adapter
from lsv_runtime.adapters.slots import AdapterSlots
from lsv_runtime.nn.model import ActiveAdapters
from lsv_runtime.nn.moe import MoE
from lsv_runtime.weights.quantizer import LinearLayer
from lsv_runtime.worker.load.saved import save_sharded_state
from lsv_runtime.worker.transfer import send_adapters
from lsv_testing.adapters import linear_layers, merge, write_adapter
from lsv_testing.tiny import tiny

NUMBERS = [0, 1, 2, 0, 1, 1, 3, 2, *[1] * 40]
DORA = (2, 3, 7)
VOCABULARY: dict[int, dict[str, Any]] = {
    4: {"embeddings": ["model.embed_tokens"], "copies": ["lm_head"]},
    6: {"copies": ["model.embed_tokens"]},
    8: {"embeddings": ["model.embed_tokens"]},
}
"""What adapters change besides layers."""
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


def layer_with_adapters(dtype: torch.dtype) -> AdapterSlots:
    """A layer that fuses parts of 40, 24 and 24 outputs, the last two of one projection, with three adapters.

    The second one rescales.
    """
    layer = LinearLayer("m", "column", 70, (40, 24, 24), False, dtype, ("q", "kv", "kv"))
    slots = AdapterSlots(layer, 3, 6, dtype, ActiveAdapters())
    generator = torch.Generator().manual_seed(0)
    for name in ("a", "b"):
        shape = slots.get_buffer(name).shape
        slots.keep(name, torch.randn(shape, generator=generator).to(dtype))
    slots.ranks[:] = array("i", [6, 3, 0])
    slots.get_buffer("a")[1, :, 3:] = 0
    slots.get_buffer("b")[1, 3:] = 0
    slots.get_buffer("b")[2] = 0
    slots.rescaled[1] = 1
    slots.keep("rescale", torch.randn((3, 2, 88), generator=generator))
    return slots


@pytest.mark.skipif(native.library() is None, reason="no compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_native_op_is_the_reference(dtype: torch.dtype) -> None:
    slots = layer_with_adapters(dtype)
    tokens = send_adapters(np.array(NUMBERS), torch.device("cpu"))
    x, y = torch.randn(len(NUMBERS), 70).to(dtype), torch.randn(len(NUMBERS), 88).to(dtype)
    wide = layer_with_adapters(dtype)
    for name in ("a", "b"):
        wide.keep(name, slots.get_buffer(name).float())
    expected = wide.reference(y.float(), x.float(), tokens)
    kernel = NativeAdapters(slots, slots.spec())
    kernel.pack()
    found = kernel.forward(y.clone(), x, tokens)
    torch.testing.assert_close(found.float(), expected, rtol=2e-2 if dtype != torch.float32 else 1e-5, atol=1e-4)
    assert torch.equal(found[[0, 3]], y[[0, 3]])
    for row, number in enumerate(NUMBERS[:8]):
        alone = send_adapters(np.array([number]), torch.device("cpu")) if number else None
        if alone is not None:
            own = y[row : row + 1].clone()
            assert torch.equal(kernel.forward(own, x[row : row + 1], alone)[0], found[row])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama", tmp_path_factory.mktemp("base"), tokenizer=True)


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> list[LoRARequest]:
    folder, layers = tmp_path_factory.mktemp("adapters"), list(linear_layers(base))
    modules = {n: layers[n % 3 :] + (["lm_head"] if n in (6, 8) else []) for n in range(1, 9)}

    def write(n: int) -> Path:
        more = VOCABULARY.get(n, {})
        return write_adapter(folder / str(n), base, modules[n], seed=n, rank=1 + n % 4, dora=n in DORA, **more)

    return [LoRARequest(f"a{n}", n, str(write(n))) for n in range(1, 9)]


@pytest.fixture
def open_llm(base: Path) -> Iterator[Callable[..., LLM]]:
    made: list[LLM] = []

    def make(model: Path = base, **options: Any) -> LLM:
        given = {"dtype": "float32", "block_size": 16, "max_num_seqs": 16, "max_model_len": 128, **options}
        made.append(LLM(str(model), **{"platform": "cpu", **given}))
        return made[-1]

    yield make
    for llm in made:
        llm.close()


def prompts(count: int) -> list[list[int]]:
    return [[(7 * n + place) % 250 for place in range(5 + 3 * n)] for n in range(count)]


def tokens_of(llm: LLM, asked: list[list[int]], lora: Any = None, count: int = 10) -> list[tuple[int, ...]]:
    params = GREEDY.replace(max_tokens=count)
    outputs = llm.generate(prompt_token_ids=asked, sampling_params=params, use_tqdm=False, lora_request=lora)
    return [tuple(output.checked().outputs[0].token_ids) for output in outputs]


@pytest.mark.row("F-289", "F-292", "F-294", "F-724", "F-726", "F-344", "F-093", "F-025", "F-028", "F-992")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"max_loras": 8}, id="all at once"),
        pytest.param({"max_loras": 3, "max_cpu_loras": 4}, id="three slots, four on the host"),
        pytest.param({"max_loras": 1}, id="one after the other"),
        pytest.param({"max_loras": 8, "max_num_batched_tokens": 24}, id="chunked"),
        pytest.param({"max_loras": 8, "num_gpu_blocks_override": 24}, id="preempted"),
        pytest.param({"max_loras": 8, "tensor_parallel_size": 2}, id="two ranks", marks=pytest.mark.slow),
        pytest.param({"max_loras": 8, "quantization": "int8"}, id="int8"),
        pytest.param({"max_loras": 3, "platform": "xpu", "emulate": True, "async_scheduling": True}, id="steps ahead"),
        pytest.param({"max_loras": 8, "platform": "hpu", "emulate": True}, id="hpu", marks=pytest.mark.slow),
        pytest.param({"max_loras": 8, "platform": "cuda", "emulate": True}, id="cuda", marks=pytest.mark.slow),
        pytest.param({"max_loras": 8, "kv_cache_dtype": "int8"}, id="int8 keys", marks=pytest.mark.slow),
        pytest.param({"max_loras": 8, "quantization": "sym_int4"}, id="int4", marks=pytest.mark.slow),
        pytest.param({"max_loras": 8, "quantization": "nf4"}, id="nf4", marks=pytest.mark.slow),
        pytest.param({"max_loras": 8, "lora_dtype": "bfloat16"}, id="another dtype", marks=pytest.mark.slow),
        pytest.param({"max_loras": 8, "reference_ops": True}, id="reference", marks=pytest.mark.slow),
    ],
)
def test_each_request_gets_what_it_gets_alone(
    options: dict[str, Any], open_llm: Callable[..., LLM], adapters: list[LoRARequest]
) -> None:
    llm = open_llm(enable_lora=True, **options)
    asked = prompts(16)
    lora = [None if n == 5 else adapters[n % 8] for n in range(16)]
    count = 60 if "num_gpu_blocks_override" in options else 10
    together = tokens_of(llm, asked, lora, count)
    llm.reset_prefix_cache()
    alone = [tokens_of(llm, [ids], [one], count)[0] for ids, one in zip(asked, lora, strict=True)]
    assert together == alone
    assert len(set(together)) > 8
    if count > 10:
        assert llm.stats.preemptions_total


@pytest.mark.skipif(native.library() is None, reason="no compiler")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_with_adapters_take_one_call_a_layer(
    dtype: str, open_llm: Callable[..., LLM], adapters: list[LoRARequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request without an adapter gets the same bits beside others as in a server that has none."""

    def refuse(*_: Any) -> None:
        raise AssertionError("the layer fell apart")

    monkeypatch.setattr(LlamaLayer, "reference", refuse)
    params = GREEDY.replace(max_tokens=6, logprobs=4)
    mixed = open_llm(enable_lora=True, max_loras=4, dtype=dtype, max_num_batched_tokens=32)
    asked, lora = prompts(6), [None, *adapters[:4], None]
    given = {"sampling_params": params, "use_tqdm": False}
    together = mixed.generate(prompt_token_ids=asked, lora_request=lora, **given)
    plain = open_llm(dtype=dtype).generate(prompt_token_ids=[asked[0], asked[5]], **given)
    for found, expected in zip((together[0], together[5]), plain, strict=True):
        assert found.checked().outputs[0].logprobs == expected.checked().outputs[0].logprobs
    mixed.reset_prefix_cache()
    for ids, one, found in zip(asked, lora, together, strict=True):
        (alone,) = mixed.generate(prompt_token_ids=[ids], lora_request=[one], **given)
        assert found.checked().outputs[0].logprobs == alone.checked().outputs[0].logprobs


@pytest.mark.row("F-425", "F-728")
@pytest.mark.parametrize("number", [0, 1, 3], ids=["LoRA", "DoRA", "embedding and head"])
def test_tokens_are_those_of_merged_weights(
    number: int, base: Path, open_llm: Callable[..., LLM], adapters: list[LoRARequest], tmp_path: Path
) -> None:
    found = tokens_of(open_llm(enable_lora=True), prompts(4), adapters[number])
    merged = tokens_of(open_llm(merge(tmp_path / "merged", base, Path(adapters[number].path))), prompts(4))
    assert found == merged


def test_scores_of_prompts(open_llm: Callable[..., LLM], adapters: list[LoRARequest]) -> None:
    """Each row of the head goes through the adapter of its own request, whichever rows are asked for."""
    llm = open_llm(enable_lora=True, max_loras=4, max_num_batched_tokens=32)
    params, asked = GREEDY.replace(max_tokens=2, prompt_logprobs=2), prompts(6)
    lora = [adapters[3], None, adapters[5], adapters[7], adapters[0], adapters[3]]
    given = {"sampling_params": params, "use_tqdm": False}
    together = llm.generate(prompt_token_ids=asked, lora_request=lora, **given)
    llm.reset_prefix_cache()
    for ids, one, found in zip(asked, lora, together, strict=True):
        (alone,) = llm.generate(prompt_token_ids=[ids], lora_request=[one], **given)
        assert found.checked().prompt_logprobs == alone.checked().prompt_logprobs


def test_magnitudes_and_heads_over_two_ranks(open_llm: Callable[..., LLM], adapters: list[LoRARequest]) -> None:
    """Rows that are cut over the inputs have their lengths from both; an adapter that was let go comes back. Others
    change a head that is cut over the vocabulary.
    """

    def answers(**options: Any) -> list[tuple[int, ...]]:
        llm = open_llm(enable_lora=True, max_num_seqs=1, max_cpu_loras=1, **options)
        return [tokens_of(llm, [ids], [adapters[n]])[0] for ids, n in zip(prompts(4), (1, 3, 1, 5), strict=True)]

    assert answers(tensor_parallel_size=2) == answers()


@pytest.mark.parametrize("options", [{}, {"quantization": "int8"}], ids=str)
def test_experts(
    options: dict[str, Any], open_llm: Callable[..., LLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps with adapters of experts go expert by expert; all others take the native call."""
    base = tiny("mixtral", tmp_path / "base")
    modules = [name for name in linear_layers(base) if "block_sparse_moe.gate" not in name]
    some = [name for name in modules if "experts" not in name]
    lora = [
        LoRARequest(name, n, str(write_adapter(tmp_path / name, base, changed, seed=n, spread=0.1)))
        for n, (name, changed) in enumerate({"all": modules, "experts": modules[4:], "attention": some}.items(), 1)
    ]
    llm = open_llm(base, enable_lora=True, max_loras=3, skip_tokenizer_init=True, **options)
    asked, given = prompts(6), [*lora, None, lora[0], lora[1]]
    with monkeypatch.context() as patched:
        patched.setattr(MoE, "mix", None)
        tokens_of(llm, asked)
        tokens_of(llm, asked, lora[2])
    llm.reset_prefix_cache()
    together = tokens_of(llm, asked, given)
    llm.reset_prefix_cache()
    assert together == [tokens_of(llm, [ids], [one])[0] for ids, one in zip(asked, given, strict=True)]
    if not options:
        merged = open_llm(merge(tmp_path / "merged", base, Path(lora[0].path)), skip_tokenizer_init=True)
        assert tokens_of(merged, asked)[::4] == together[::4]
    else:
        assert together != tokens_of(llm, asked)


@pytest.mark.parametrize("drafts", [None, {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False}], ids=str)
def test_answers_of_a_form(
    drafts: dict[str, Any] | None, open_llm: Callable[..., LLM], adapters: list[LoRARequest]
) -> None:
    """Grammars, and drafts beside them, change nothing in what each request gets from its adapter."""
    llm = open_llm(enable_lora=True, max_loras=2, speculative_config=drafts)
    form = StructuredOutputsParams(regex="[a-z]{12,16}")
    params = SamplingParams(temperature=0.0, max_tokens=24, structured_outputs=form)
    asked, lora = prompts(6), [adapters[0], None, adapters[1], adapters[0], adapters[1], None]
    together = llm.generate(prompt_token_ids=asked, sampling_params=params, use_tqdm=False, lora_request=lora)
    texts = [output.checked().outputs[0].text for output in together]
    assert all(re.fullmatch("[a-z]{12,16}", text) for text in texts)
    for ids, one, text in zip(asked, lora, texts, strict=True):
        (alone,) = llm.generate(prompt_token_ids=[ids], sampling_params=params, use_tqdm=False, lora_request=[one])
        assert alone.outputs[0].text == text


@pytest.mark.row("F-733", "F-354")
def test_prefixes_are_shared_within_an_adapter_alone(open_llm: Callable[..., LLM], adapters: list[LoRARequest]) -> None:
    llm = open_llm(enable_lora=True, max_loras=2)
    asked = [list(range(60))]

    def hits(lora: LoRARequest | None) -> int:
        before = llm.stats.prefix_hits_total
        tokens_of(llm, asked, lora)
        return llm.stats.prefix_hits_total - before

    same = LoRARequest("other-name", 77, adapters[0].path)
    assert [hits(one) for one in (None, adapters[0], adapters[1])] == [0, 0, 0]
    assert all(hits(one) == 48 for one in (None, adapters[0], adapters[1], same))


@pytest.mark.row("F-290", "F-727", "F-729", "F-735")
def test_refusals(base: Path, open_llm: Callable[..., LLM], adapters: list[LoRARequest], tmp_path: Path) -> None:
    llm = open_llm(enable_lora=True)
    with pytest.raises(BadRequest, match="2 prompts need 2 lora_request, got 1"):
        tokens_of(llm, prompts(2), [adapters[0]])
    with pytest.raises(BadRequest, match=r"has no adapter_config\.json"):
        tokens_of(llm, prompts(1), LoRARequest("x", 1, str(tmp_path)))
    wide = write_adapter(tmp_path / "wide", base, list(linear_layers(base))[:1], rank=17)
    with pytest.raises(BadRequest, match="has rank 17, over the limit of 16: raise --max-lora-rank"):
        tokens_of(llm, prompts(1), LoRARequest("x", 1, str(wide)))
    with pytest.raises(ConfigError, match="Saving with enable_lora=True is not supported!"):
        save_sharded_state(llm.config, llm._plugins.catalog, tmp_path / "saved")
    with pytest.raises(BadRequest, match="start with --enable-lora"):
        tokens_of(open_llm(), prompts(1), adapters[0])
    assert len(tokens_of(llm, prompts(1), adapters[0])[0]) == 10


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"use_dora": True}, "has no lora_magnitude_vector"),
        ({"modules_to_save": ["lm_head"]}, "has no weight for lm_head, which modules_to_save lists"),
        ({"ensure_weight_tying": True}, "ensure_weight_tying: an adapter of the embedding"),
        ({"bias": "all"}, "bias 'all' is not served"),
        ({"lora_bias": True}, "lora_bias"),
        ({"init_lora_weights": "pissa_niter_16"}, "changes the base model's weights"),
        ({"peft_type": "IA3"}, "peft_type 'IA3' is not served"),
        ({"use_something_new": True}, "use_something_new=True is not known"),
        ({"target_modules": ["nothing"]}, "which target_modules does not include"),
        ({"r": 0}, "at least 1"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    config: dict[str, Any], message: str, base: Path, tmp_path: Path
) -> None:
    folder = write_adapter(tmp_path / "a", base, list(linear_layers(base))[:1], **config)
    with pytest.raises(CheckpointError, match=message):
        read_adapter(folder, 64)


@pytest.mark.row("F-027", "F-072")
def test_chats_and_steps_by_hand(open_llm: Callable[..., LLM], adapters: list[LoRARequest]) -> None:
    llm = open_llm(enable_lora=True, max_loras=2)
    chat = [{"role": "user", "content": "Ahoy"}]
    params = GREEDY.replace(max_tokens=6)
    plain, other = (
        llm.chat(chat, params, use_tqdm=False, lora_request=one)[0].outputs[0].token_ids for one in (None, adapters[0])
    )
    assert plain != other
    engine = llm.llm_engine
    engine.add_request("plain", "user: Ahoy\nassistant: ", params)
    engine.step()
    engine.add_request("other", "user: Ahoy\nassistant: ", params, lora_request=adapters[0])
    found = {}
    while engine.has_unfinished_requests():
        found |= {one.request_id: one.outputs[0].token_ids for one in engine.step(finished_only=True)}
    assert found == {"plain": plain, "other": other}


def test_reading_goes_on_beside_steps(
    open_llm: Callable[..., LLM], adapters: list[LoRARequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is asked for an adapter says that it is being read until another thread has read it."""
    worker = open_llm(enable_lora=True).llm_engine.client._engine._executor._worker
    go, threads = threading.Event(), []

    def read(*given: Any) -> Any:
        threads.append(threading.current_thread())
        assert go.wait(30)
        return read_adapter(*given)

    monkeypatch.setattr(store, "read_adapter", read)
    order = ReadAdapter(9, adapters[0].path, digest(Path(adapters[0].path)).hex())
    for _ in range(2):
        with pytest.raises(NotYet):
            worker.control(order)
    go.set()
    worker.live.adapters._reading[9].result(30)
    worker.control(order)
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()
