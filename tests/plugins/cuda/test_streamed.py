"""Layers streamed from the host's memory on emulated devices, which leave garbage where a copy is not waited for."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from lsv import LLM, SamplingParams
from lsv.request.adapter import LoRARequest
from lsv_base.errors import ConfigError
from lsv_runtime.devices.fetching import StreamFetcher
from lsv_runtime.emulation.fakes import FakeCapturing
from lsv_runtime.emulation.placement.device import placement
from lsv_runtime.nn.decoder import Decoder, DecoderLayer
from lsv_runtime.worker.load import hosted as hosted_layers
from lsv_runtime.worker.load.hosted import HostedLayer, OwnWeights, PinnedMemory
from lsv_runtime.worker.load.streamed import StreamedLayers, choose, own_weights, saved, spread
from lsv_runtime.worker.runner import ModelRunner
from lsv_testing.adapters import linear_layers, write_adapter
from lsv_testing.tiny import tiny
from suite.emulated_memory import EmulatedMemory

PLACED = pytest.mark.skipif(placement() is None, reason="the emulated device can't be compiled here")
LAYERS, GIB = 5, 1 << 30
SAMPLING = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=20)
PROMPTS = [{"prompt_token_ids": list(range(40, 40 + length))} for length in (1, 17)]

Answers = list[tuple[tuple[int, ...], list[dict[int, float]]]]
Make = Callable[..., Path]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Checkpoints by family and shape, each made once."""
    made: dict[str, Path] = {}

    def checkpoint(family: str = "llama", **shape: Any) -> Path:
        name = f"{family}{sorted(shape.items())}"
        if name not in made:
            shape = {"num_hidden_layers": LAYERS, **shape}
            made[name] = tiny(family, tmp_path_factory.mktemp(family), tokenizer=True, **shape)
        return made[name]

    return checkpoint


def open_llm(checkpoint: Path, gib: float = 1.0, *, on: str = "cuda", **options: Any) -> LLM:
    common = {
        "dtype": "float32", "max_model_len": 64, "max_num_seqs": 2, "num_gpu_blocks_override": 32,
        "reference_ops": True, "cpu_offload_gb": gib,
    }  # fmt: skip
    return LLM(str(checkpoint), platform=on, emulate=True, **{**common, **options})


def ask(llm: LLM, adapter: LoRARequest | None = None) -> Answers:
    """Greedy tokens, and the log probabilities of the likeliest: sums over all logits are in them."""
    found = [
        output.checked().outputs[0] for output in llm.generate(PROMPTS, SAMPLING, use_tqdm=False, lora_request=adapter)
    ]
    return [
        (tuple(one.token_ids), [{token: said.logprob for token, said in place.items()} for place in one.logprobs or ()])
        for one in found
    ]


def answers(checkpoint: Path, gib: float = 1.0, adapter: LoRARequest | None = None, **options: Any) -> Answers:
    with open_llm(checkpoint, gib, **options) as llm:
        return ask(llm, adapter)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts graphs that are replayed to serve."""
    counts: Counter[str] = Counter()
    run = ModelRunner._run_compiled

    def counting(runner: ModelRunner, buffers: Any, *more: Any, **named: Any) -> Any:
        counts["compiled" if buffers.compiled else "eager"] += 1
        return run(runner, buffers, *more, **named)

    monkeypatch.setattr(ModelRunner, "_run_compiled", counting)
    return counts


@PLACED
@pytest.mark.row("F-013", "F-257", "F-391", "F-951")
@pytest.mark.parametrize("on", ["cuda", "xpu"])
def test_answers_are_those_without(make: Make, on: str, captured: Counter[str]) -> None:
    """Bit by bit, with all layers streamed and with some; in graphs, and op by op."""
    wanted = answers(make(), 0, on=on)
    assert answers(make(), on=on) == wanted
    assert captured["compiled"] > 0
    part = 4.2 / GIB * layer_bytes(make())
    assert answers(make(), part, on=on, enforce_eager=True, async_scheduling=False) == wanted


def layer_bytes(checkpoint: Path) -> int:
    """Those of one of a tiny llama's layers in float32."""
    from safetensors.torch import load_file

    stored = load_file(checkpoint / "model.safetensors")
    return 4 * sum(tensor.numel() for name, tensor in stored.items() if ".layers.0." in name)


@PLACED
@pytest.mark.parametrize(
    ("family", "shape", "options"),
    [
        ("llama", {"tie_word_embeddings": True}, {"quantization": "int8"}),
        ("qwen3_moe", {"mlp_only_layers": [1]}, {"quantization": "sym_int4_g32"}),
        pytest.param(
            "gpt2", {}, {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, marks=pytest.mark.slow
        ),
    ],
)
def test_formats_and_families(make: Make, family: str, shape: dict[str, Any], options: dict[str, Any]) -> None:
    checkpoint = make(family, **shape)
    assert answers(checkpoint, **options) == answers(checkpoint, 0, **options)


@PLACED
@pytest.mark.slow
@pytest.mark.skipif(os.environ["TRITON_INTERPRET"] != "1", reason="kernels are compiled for a GPU in this process")
@pytest.mark.parametrize("quantization", [None, "sym_int4_g32"])
def test_what_kernels_keep_moves_along(make: Make, monkeypatch: pytest.MonkeyPatch, quantization: str | None) -> None:
    """Kernels of Triton keep views of plain weights, and tensors of their own of coded ones."""
    monkeypatch.setitem(globals(), "PROMPTS", PROMPTS[:1])
    monkeypatch.setitem(globals(), "SAMPLING", SamplingParams(temperature=0.0, max_tokens=2, logprobs=5))
    kernels = {
        "reference_ops": False, "triton_interpret": True, "attention_backend": "triton-paged", "enforce_eager": True,
        "quantization": quantization, "max_num_seqs": 1, "max_num_batched_tokens": 16, "max_model_len": 32,
    }  # fmt: skip
    monkeypatch.setattr(ModelRunner, "_run_all_sizes", lambda runner, sample: None)
    checkpoint, streamed = make(num_hidden_layers=3), []
    settle = StreamedLayers.settle
    monkeypatch.setattr(StreamedLayers, "settle", lambda self: (settle(self), streamed.extend(self.sizes)))
    assert answers(checkpoint, **kernels) == answers(checkpoint, 0, **kernels)
    if quantization is None:
        assert min(streamed) >= layer_bytes(checkpoint), "no weight has stayed on the device"


@PLACED
@torch.inference_mode()
def test_all_views_of_a_layers_weights_move_along() -> None:
    """Those that kernels keep, wherever they keep them. What something else holds as well stays on the device."""
    placed = placement()
    assert placed is not None
    device = placed.torch_device(0)
    layer: Any = nn.Linear(4, 64, device="meta")
    for name, numbers in (("weight", torch.randn(64, 4)), ("bias", torch.randn(64))):
        setattr(layer, name, nn.Parameter(numbers.to(device), requires_grad=False))
    layer.register_buffer("table", torch.randn(3).to(device))
    views = {"rows": layer.weight.detach()[None], "part": layer.weight.mT[1:, 8:]}
    layer.__dict__["kernel"] = SimpleNamespace(stack=[views])
    wanted = {name: view.cpu() for name, view in (*views.items(), ("bias", layer.bias))}
    elsewhere, held = layer.table[1:], placed.held(0)
    hosted = HostedLayer(layer, OwnWeights((layer,)), PinnedMemory(), device)
    assert hosted.size == 4 * 64 * 4 + 64 * 4
    assert held - placed.held(0) == hosted.size
    assert len(layer.table) == 1 + len(elsewhere)
    room = torch.zeros((2, hosted.size + 256), dtype=torch.uint8, device=device)[1]
    for target, source in hosted.place(room):
        target.copy_(source)
    found = {name: view.cpu() for name, view in (*views.items(), ("bias", layer.bias))}
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    room.zero_()
    assert not views["part"].cpu().any()


@PLACED
def test_layers_lie_in_as_many_pieces_as_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_layers, "_BLOCK", 1024)
    memory = PinnedMemory()
    assert [[len(piece) for piece in memory.take(size)] for size in (700, 1400, 0)] == [[700], [324, 1024, 52], []]
    assert all(piece.is_pinned() for piece in memory.take(2000))


@PLACED
def test_adapters_stay_on_the_device(make: Make, tmp_path: Path) -> None:
    write_adapter(tmp_path / "adapter", make(), list(linear_layers(make())))
    adapter = LoRARequest("adapter", 1, str(tmp_path / "adapter"))
    wanted = answers(make(), 0, adapter, enable_lora=True)
    assert answers(make(), 1, adapter, enable_lora=True) == wanted
    assert wanted != answers(make(), 0)


@PLACED
def test_sleeping(make: Make) -> None:
    memory = EmulatedMemory()
    with open_llm(make(), enable_sleep_mode=True) as llm:
        wanted, held = ask(llm), memory.held
        for level in (1, 2):
            llm.sleep(level)
            assert memory.held < 0.1 * llm.fit.weight_bytes
            llm.wake_up()
            assert memory.held == pytest.approx(held, rel=0.1)
            assert ask(llm) == wanted


@PLACED
def test_a_layer_is_copied_while_the_one_before_is_computed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """And into the place of one that has been computed; what is computed has been waited for."""
    happened: list[tuple[str, int]] = []
    for name in ("fetch", "expect"):
        plain = getattr(StreamFetcher, name)

        def watched(self: Any, place: int, *copies: Any, name: str = name, plain: Any = plain) -> None:
            happened.append((name, place))
            plain(self, place, *copies)

        monkeypatch.setattr(StreamFetcher, name, watched)

    def ended(module: nn.Module, *_: Any) -> None:
        if isinstance(module, DecoderLayer):
            happened.append(("layer", module.attn.layer.index))

    hook = nn.modules.module.register_module_forward_hook(ended)
    try:
        with open_llm(make(num_hidden_layers=4), enforce_eager=True, async_scheduling=False) as llm:
            happened.clear()
            ask(llm)
    finally:
        hook.remove()
    step = [
        ("fetch", 0), ("fetch", 1), ("expect", 0), ("layer", 0), ("fetch", 0), ("expect", 1), ("layer", 1),
        ("fetch", 1), ("expect", 0), ("layer", 2), ("expect", 1), ("layer", 3),
    ]  # fmt: skip
    assert happened[: len(step)] == step
    assert happened == step * (len(happened) // len(step))


@PLACED
def test_the_emulation_tells_when_a_copy_is_not_waited_for(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamFetcher, "expect", lambda self, place: None)
    with open_llm(make(), enforce_eager=True) as llm:
        (found,) = llm.generate(PROMPTS[:1], SAMPLING, use_tqdm=False)
        assert found.error is not None
        assert "not finite" in found.error.message


@PLACED
def test_events_of_a_capture_are_recorded_in_it() -> None:
    placed = placement()
    assert placed is not None
    runtime = FakeCapturing(1, GIB)
    runtime.library = "a test"
    runtime.set_device(0)
    fetcher = StreamFetcher(runtime, placed.torch_device(0), 1)
    target = torch.zeros(4, dtype=torch.uint8).to(placed.torch_device(0))
    source = torch.arange(4, dtype=torch.uint8).pin_memory()
    with pytest.raises(RuntimeError, match="never recorded"):
        fetcher.expect(0)
    fetcher.fetch(0, [(target, source)])
    assert target.cpu().tolist() == [255] * 4
    fetcher.expect(0)
    assert target.cpu().tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="not pinned"):
        fetcher.fetch(0, [(target, torch.zeros(4, dtype=torch.uint8))])


@PLACED
def test_the_device_never_holds_all_layers(make: Make) -> None:
    """Not while weights are read either; and the KV cache has the room."""
    checkpoint = make(num_hidden_layers=12, hidden_size=128, intermediate_size=1024)
    one = layer_bytes(checkpoint)
    fits, peaks = [], []
    for gib in (0.0, 9.5 * one / GIB):
        memory = EmulatedMemory()
        with open_llm(
            checkpoint, gib, num_gpu_blocks_override=None, gpu_memory_utilization=0.03, enforce_eager=True
        ) as llm:
            fits.append(llm.fit)
            peaks.append(memory.peak - llm.fit.kv_bytes)
    less = fits[0].weight_bytes - fits[1].weight_bytes
    assert less == pytest.approx(7 * one, rel=0.01), "nine layers are on the host, and two places hold any of them"
    assert peaks[0] > 12 * one
    assert peaks[1] < peaks[0] - 6 * one
    assert fits[1].kv_bytes - fits[0].kv_bytes == pytest.approx(less, rel=0.05)
    (said,) = [reason.why for reason in fits[1].reasons if reason.name == "cpu_offload_gb"]
    assert said.startswith("9 of 12 layers lie in pinned memory of the host and come through 2 places of ")


@pytest.mark.parametrize(
    ("gib", "options", "words"),
    [
        (1e-6, {}, r"it comes to 0 of 5 layers here, .*: give 0\.\d+ or more, or leave it out"),
        (1, {"on": "hpu"}, "platform hpu can't copy from the host in the background"),
    ],
)
def test_refusals(make: Make, gib: float, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        open_llm(make(), gib, **options)
    assert caught.value.param == "cpu_offload_gb"


def test_layers_that_hang_on_others_are_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decoder, "staged", False)
    with pytest.raises(ConfigError, match="layers of LlamaForCausalLM need more than the last one's output"):
        open_llm(make())


def test_the_least_that_is_named_is_enough(make: Make) -> None:
    with pytest.raises(ConfigError) as caught:
        open_llm(make(), 1e-6)
    least = float(caught.value.message.split("give ")[1].split(" or")[0])
    with open_llm(make(), least) as llm:
        assert any("3 of 5 layers" in reason.why for reason in llm.fit.reasons)


def test_it_means_nothing_where_weights_are_in_the_hosts_memory(make: Make) -> None:
    with LLM(str(make()), platform="cpu", cpu_threads=1, cpu_native="off", cpu_offload_gb=4, max_model_len=64) as llm:
        (said,) = [reason for reason in llm.fit.reasons if reason.name == "cpu_offload_gb"]
    assert said.why == "has no effect: platform cpu computes with weights where they are, in the host's memory"


def test_layers_are_spread_and_chosen_by_size() -> None:
    assert spread(8, 3) == [1, 4, 7]
    assert spread(5, 5) == [0, 1, 2, 3, 4]
    assert choose([10] * 8, 39) == (1, 4, 7)
    assert choose([10] * 8, 9) == ()
    assert choose([0, 10, 10, 0, 10], 100) == (1, 2, 4)
    assert choose([1, 100, 1, 1], 10) == (3,)
    assert saved([10, 10, 10]) == 10
    assert saved([10, 30, 10]) == -10


def test_what_a_layer_has_for_itself() -> None:
    model: Any = nn.Module()
    norm = nn.LayerNorm(2)
    model.layers = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), norm) for _ in range(2))
    model.embed = nn.Linear(2, 2, bias=False)
    model.layers[1][0].weight = model.embed.weight
    first, second = own_weights(model)
    assert [tensor.shape for tensor in first.tensors()] == [(2, 2), (2,)]
    assert [tensor.shape for tensor in second.tensors()] == [(2,)]


@PLACED
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}])
def test_every_rank_streams_its_own(make: Make, ranks: dict[str, int]) -> None:
    checkpoint = make(num_hidden_layers=6)
    assert answers(checkpoint, **ranks) == answers(checkpoint, 0, **ranks)
