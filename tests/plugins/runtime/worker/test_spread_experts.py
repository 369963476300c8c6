"""Engines whose experts are spread over ranks: processes that share memory, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv.config import EngineConfig, ExpertOptions, Topology
from lsv.engine.messages import ExpertCounts
from lsv.plugins.catalog import Catalog
from lsv.resolve import resolve
from lsv_base.errors import ConfigError
from lsv_offline.llm import read_arguments
from lsv_testing.tiny import tiny

PROMPTS = [{"prompt_token_ids": list(range(5, 5 + length))} for length in (3, 17, 40)]
SPARSE = {"num_experts": 8, "mlp_only_layers": []}
SPREAD = {"tensor_parallel_size": 2, "enable_expert_parallel": True}
MOVING = {
    **SPREAD, "enable_eplb": True, "eplb_config": {"window_size": 4, "step_interval": 4},
    "expert_map": "[1, 0, 0, 1, 0, 1, 0, 1]",  # the prompts' favourites of the second layer are on one rank
}  # fmt: skip
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, detokenize=False)


def answer(path: Path, **options: Any) -> tuple[list[tuple[int, ...]], ExpertCounts | None]:
    given = {"dtype": "float32", "max_model_len": 128, "skip_tokenizer_init": True, "max_num_batched_tokens": 24}
    with LLM(str(path), enable_chunked_prefill=True, **given, **options) as llm:
        answers = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        return [one.outputs[0].token_ids for one in answers], llm.stats.experts


def run(path: Path, **options: Any) -> list[tuple[int, ...]]:
    return answer(path, **options)[0]


@pytest.mark.row("F-282", "F-283")
@pytest.mark.slow
@pytest.mark.parametrize(("family", "stages"), [("qwen3_moe", 1), ("mixtral", 1), ("qwen3_moe", 2)])
def test_ranks_of_spread_experts_answer_as_one(family: str, stages: int, tmp_path: Path) -> None:
    path = tiny(family, tmp_path)
    spread = {"enable_expert_parallel": True, "all2all_backend": "allgather_reducescatter"}
    assert run(path, tensor_parallel_size=2, pipeline_parallel_size=stages, **spread) == run(path)


@pytest.mark.row("F-282")
@pytest.mark.xdist_group("processes")
def test_experts_move_in_the_middle_of_answers(tmp_path: Path) -> None:
    path = tiny("qwen3_moe", tmp_path, **SPARSE)
    found, counts = answer(path, **MOVING)
    assert found == run(path)
    assert counts is not None
    assert counts.balanced_total >= 3
    assert counts.moved_total > 0
    assert 0.5 <= counts.measured <= counts.expected <= 1.0


@pytest.mark.row("F-282", "F-570", "F-571")
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(
    ("platform", "options"),
    [
        pytest.param("hpu", {}, id="hpu"),
        pytest.param("hpu", {"enforce_eager": True}, id="hpu-eager", marks=pytest.mark.slow),
        pytest.param("hpu", {"quantization": "asym_int4"}, id="hpu-4-bits", marks=pytest.mark.slow),
        pytest.param("cuda", {}, id="cuda", marks=pytest.mark.slow),
        pytest.param(
            "xpu", {"pipeline_parallel_size": 2, "xpu.emulated_devices": 4}, id="xpu-stages", marks=pytest.mark.slow
        ),
    ],
)
def test_ranks_of_accelerators_answer_as_one(platform: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Emulated ones, where captured steps go on as experts move."""
    path = tiny("qwen3_moe", tmp_path, **SPARSE)
    found, counts = answer(path, platform=platform, emulate=True, num_gpu_blocks_override=40, **MOVING, **options)
    # formats that are made while loading have other scales for parts of a layer, as attention has
    alike = {**SPREAD, "quantization": options["quantization"]} if "quantization" in options else {}
    assert found == run(path, reference_ops=True, **alike)
    assert counts is not None
    assert counts.balanced_total >= 3
    assert counts.moved_total > 0


@pytest.mark.row("F-282")
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"quantization": "int8"},
        {"quantization": "sym_int4"},
        {"pipeline_parallel_size": 2},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
    ],
    ids=str,
)
def test_moving_changes_no_answer(options: dict[str, Any], tmp_path: Path) -> None:
    path = tiny("qwen3_moe", tmp_path, **SPARSE)
    wanted, nothing = answer(path, **SPREAD, **options)
    found, counts = answer(path, **MOVING, **options)
    assert found == wanted
    assert nothing is None
    assert counts is not None
    assert counts.moved_total > 0


@pytest.mark.row("F-282")
@pytest.mark.slow
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("given", ["[0,1,0,1,0,1,0,1]", "[[1,0,0,1,1,1,0,0],[0,1,1,1,1,1,1,1]]"])
def test_maps_change_no_answer(given: str, stages: int, tmp_path: Path) -> None:
    path, file = tiny("qwen3_moe", tmp_path / "model", **SPARSE), tmp_path / "map.json"
    file.write_text(given)
    assert run(path, **SPREAD, expert_map=str(file), pipeline_parallel_size=stages) == run(path)


@pytest.mark.slow
def test_experts_move_again_after_sleeping(tmp_path: Path) -> None:
    path = tiny("qwen3_moe", tmp_path, **SPARSE)
    wanted = run(path)
    given = {"dtype": "float32", "max_model_len": 128, "skip_tokenizer_init": True, "max_num_batched_tokens": 24}
    with LLM(str(path), enable_sleep_mode=True, **given, **MOVING) as llm:
        for level in (1, 2, 2):
            answers = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
            assert [one.outputs[0].token_ids for one in answers] == wanted
            llm.sleep(level)
            llm.wake_up()
        assert llm.stats.experts is not None
        assert llm.stats.experts.moved_total > 0


def configure(**given: Any) -> EngineConfig:
    settings, loaded = read_arguments({"model": "lsv-demo", "enable_expert_parallel": True, **given})
    return resolve(settings, loaded)


def topology(**given: Any) -> Topology:
    return configure(**given).topology


@pytest.mark.row("F-570")
def test_experts_are_spread_over_the_ranks_of_a_stage() -> None:
    assert topology(tensor_parallel_size=2, pipeline_parallel_size=3).expert == 2
    assert topology() == Topology(), "one rank has them all"


@pytest.mark.row("F-570", "F-571", "F-971")
def test_experts_are_spread_over_the_ranks_of_all_replicas() -> None:
    assert topology(tensor_parallel_size=2, data_parallel_size=3) == Topology(tensor=2, data=3, expert=6)
    assert topology(data_parallel_size=3, pipeline_parallel_size=2).expert == 3, "those of a stage"
    assert topology(data_parallel_size=3).shares_experts
    assert not topology(tensor_parallel_size=3).shares_experts
    machines = {"nnodes": 4, "node_rank": 0, "master_addr": "10.0.0.1", "cluster_key": "k" * 16}
    assert topology(tensor_parallel_size=2, data_parallel_size=2, **machines).expert == 4


@pytest.mark.row("F-282")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"enable_sleep_mode": True}, "enable_sleep_mode: not with"),
        ({"cpu_offload_gb": 1}, "cpu_offload_gb: not with"),
        ({"expert_map": "[0, 2]"}, "expert 1 is on rank 2, and there are 2"),
    ],
    ids=str,
)
def test_what_replicas_that_share_experts_do_not_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configure(data_parallel_size=2, **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"data_parallel_size": 2, "data_parallel_rank": 1},
            "enable_expert_parallel with data_parallel_size=2 as",
        ),
        ({"load_format": "sharded_state"}, "checkpoints of sharded_state have a part of every expert"),
    ],
)
def test_what_can_not_be_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        topology(tensor_parallel_size=2, **given)


@pytest.mark.row("F-282")
@pytest.mark.parametrize(
    ("given", "experts"),
    [
        ({}, None),
        ({"enable_eplb": True}, ExpertOptions(interval=3000, window=1000)),
        ({"enable_eplb": True, "eplb_step_interval": 40}, ExpertOptions(interval=40, window=40)),
        (
            {"enable_eplb": True, "eplb_step_interval": "2k", "eplb_window_size": 9},
            ExpertOptions(interval=2000, window=9),
        ),
        (
            {"enable_eplb": True, "eplb_config": {"window_size": 5, "step_interval": 7, "log_balancedness": True}},
            ExpertOptions(interval=7, window=5),
        ),
        ({"expert_map": "[0, 1, 1]"}, ExpertOptions(map=((0, 1, 1),))),
        (
            {"expert_map": "[[0,1],[1,0]]", "enable_eplb": True},
            ExpertOptions(map=((0, 1), (1, 0)), interval=3000, window=1000),
        ),
    ],
    ids=str,
)
def test_how_experts_move_is_said_as_vllm_says_it(given: dict[str, Any], experts: ExpertOptions | None) -> None:
    assert configure(tensor_parallel_size=2, **given).experts == experts


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"expert_map": "[0, 2, 1]"}, "expert 1 is on rank 2, and there are 2, counted from 0"),
        ({"expert_map": "[0, true]"}, "expert 1 is on rank True"),
        ({"expert_map": "[[0, 1], [1, -1]]"}, r"expert 1 \(list 1\) is on rank -1"),
        ({"expert_map": "[[0, 1], [1, 1]]"}, r"rank 0 has no expert \(list 1\)"),
        ({"expert_map": '{"0": 1}'}, "it must be a list of the ranks"),
        ({"expert_map": "[]"}, "it must be a list of the ranks"),
        ({"expert_map": "[0, 1"}, "it must be JSON"),
        ({"expert_map": "/nowhere/map.json"}, "/nowhere/map.json can't be read"),
        ({"enable_eplb": True, "eplb_config": {"window": 5}}, "unknown key 'window'; expected window_size"),
        ({"enable_eplb": True, "eplb_config": {"num_redundant_experts": 2}}, "must be 0, got 2: each expert is on one"),
        ({"enable_eplb": True, "eplb_config": {"policy": "swipe"}}, "policy must be default, got 'swipe'"),
        ({"enable_eplb": True, "eplb_config": {"step_interval": 0}}, "step_interval must be a whole number of steps"),
        ({"enable_eplb": True, "eplb_config": {"step_interval": 5}, "eplb_step_interval": 6}, "give one of them"),
        ({"enable_eplb": True, "eplb_config": [1]}, "must be a JSON object"),
        ({"enable_eplb": True, "eplb_window_size": 9, "eplb_step_interval": 8}, "must be at most step_interval=8"),
        ({"enable_eplb": True, "cpu_offload_gb": 1}, "enable_eplb with cpu_offload_gb"),
        ({"enable_eplb": True, "tensor_parallel_size": 1}, "enable_eplb: ranks must have whole experts"),
        ({"expert_map": "[0, 1]", "enable_expert_parallel": False}, "expert_map: ranks must have whole experts"),
        ({"eplb_config": {"window_size": 5}}, "eplb_config: experts stay where they are without --enable-eplb"),
        ({"eplb_step_interval": 5}, "eplb_step_interval: experts stay where they are"),
        ({"enable_eplb": True, "num_redundant_experts": 2}, "has no copies"),
    ],
)
def test_maps_and_movements_that_can_not_be_are_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configure(**{"tensor_parallel_size": 2, **given})


def forget(ops: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no platform had kernels for these."""
    offers = Catalog.offers

    def others(catalog: Catalog, kind: type[Any]) -> tuple[Any, ...]:
        return tuple(offer for offer in offers(catalog, kind) if getattr(offer, "op", None) not in ops)

    monkeypatch.setattr(Catalog, "offers", others)


def said(config: EngineConfig, name: str) -> list[tuple[str, str]]:
    return [(reason.value, reason.why) for reason in config.reasons if reason.name == name]


@pytest.mark.row("F-282", "F-570", "F-571")
@pytest.mark.parametrize("platform", ["cuda", "rocm", "xpu", "hpu"])
def test_accelerators_have_whole_experts(platform: str) -> None:
    config = configure(tensor_parallel_size=2, platform=platform, emulate=True, enable_eplb=True)
    assert config.topology.expert == 2
    assert config.experts == ExpertOptions(interval=3000, window=1000)
    assert not said(config, "enable_expert_parallel")
    four = {"xpu.emulated_devices": 4} if platform == "xpu" else {}
    replicas = configure(tensor_parallel_size=2, data_parallel_size=2, platform=platform, emulate=True, **four)
    assert (replicas.topology.expert, replicas.topology.shares_experts) == (4, True)
    assert not said(replicas, "enable_expert_parallel")


@pytest.mark.row("F-282")
def test_replicas_have_all_experts_where_no_kernel_is_for_shared_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole where their ranks can share them."""
    forget({"moe.exchanged"}, monkeypatch)
    config = configure(tensor_parallel_size=2, data_parallel_size=2, platform="cuda", emulate=True)
    assert (config.topology.expert, config.topology.shares_experts) == (2, False)
    (reason,) = said(config, "enable_expert_parallel")
    assert reason[0] == "True"
    assert "no kernels for experts that replicas share" in reason[1]
    assert "each replica has them whole, spread over its ranks" in reason[1]
    alone = configure(data_parallel_size=2, platform="cuda", emulate=True, enable_eplb=True)
    assert (alone.topology.expert, alone.experts) == (1, None)
    assert said(alone, "enable_expert_parallel")[0][1].endswith("and each replica holds all experts")
    assert said(alone, "enable_eplb") == [
        ("False", "no rank has experts that others have not, so all have the same to do")
    ]
    with pytest.raises(ConfigError, match="expert 1 is on rank 3, and there are 2"):
        configure(tensor_parallel_size=2, data_parallel_size=2, platform="cuda", emulate=True, expert_map="[0, 3]")


def test_experts_stay_cut_where_kernels_are_for_cut_ones_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    forget({"moe.spread", "moe.exchanged"}, monkeypatch)
    config = configure(tensor_parallel_size=2, platform="hpu", emulate=True, enable_eplb=True)
    assert (config.topology.expert, config.experts) == (1, None)
    (reason,) = said(config, "enable_expert_parallel")
    assert "kernels for experts that are cut and none for whole ones" in reason[1]
    assert said(config, "enable_eplb")
    replicas = configure(data_parallel_size=2, platform="hpu", emulate=True)
    assert not replicas.topology.shares_experts
    assert said(replicas, "enable_expert_parallel")[0][1].endswith("each replica holds all experts")
