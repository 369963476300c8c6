"""Settings: values from flags, variables and files, in that order, and what is refused."""

from pathlib import Path

import pytest

from lsv.settings import Declared, Setting, Settings, gather, options, own_environment, unknown_variables
from lsv.settings.flags import parse
from lsv.settings.host_ip import read_host_ip
from lsv_base.errors import ConfigError

PLUGIN = Setting(name="cpu.threads", type="int", default=0, env=("OMP_NUM_THREADS",))
ALL = (*options.CORE, PLUGIN)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for variable in list(os.environ):
        if variable.startswith(("LSV_", "VLLM_")) or variable == "OMP_NUM_THREADS":
            monkeypatch.delenv(variable)


def read(*arguments: str, file: Path | None = None) -> Settings:
    declared = Declared(ALL)
    line = parse(arguments, declared)
    return gather(declared, line.given, file=str(file) if file else None, positional=line.positional)


@pytest.mark.row("F-193", "F-194", "F-218", "F-253")
@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["--max-model-len", "5"], "max_model_len", 5),
        (["--max_model_len", "5"], "max_model_len", 5),
        (["--max-model-len=5"], "max_model_len", 5),
        (["--max_model_len=8k"], "max_model_len", 8000),
        (["--max-model-len", "8K"], "max_model_len", 8192),
        (["--max-model-len", "1.5K"], "max_model_len", 1536),
        (["-tp", "2"], "tensor_parallel_size", 2),
        (["-tp=2"], "tensor_parallel_size", 2),
        (["-tp2"], "tensor_parallel_size", 2),
        (["-O3"], "compilation_config", "3"),
        (["-q", "fp8"], "quantization", "fp8"),
        (["--gpu-memory-util", "0.5"], "gpu_memory_utilization", 0.5),
        (["--gpu_memory_util=0.5"], "gpu_memory_utilization", 0.5),
        (["--seed", "-3"], "seed", -3),
        (["--device", "cpu"], "platform", "cpu"),
        (["--policy=priority"], "scheduling_policy", "priority"),
        (["--enforce-eager"], "enforce_eager", True),
        (["--enforce-eager", "false"], "enforce_eager", False),
        (["--enforce-eager=0"], "enforce_eager", False),
        (["--enable-chunked-prefill", "false"], "enable_chunked_prefill", False),
        (["--enable-chunked-prefill"], "enable_chunked_prefill", True),
        (["--disable-logprobs-during-spec-decoding", "true"], "disable_logprobs_during_spec_decoding", True),
        (["--enable-prefix-caching", "on"], "enable_prefix_caching", True),
        (["--no-enable-prefix-caching"], "enable_prefix_caching", False),
        (["--no-enable-prefix"], "enable_prefix_caching", False),
        (["--served-model-name", "a", "b"], "served_model_name", ("a", "b")),
        (["--served-model-name", "a", "--served-model-name=b"], "served_model_name", ("a", "b")),
        (["--allowed-origins", '["http://a", "http://b"]'], "allowed_origins", ("http://a", "http://b")),
        (["--plugins", "cpu,models"], "plugins", ("cpu", "models")),
        (["--plugins", ""], "plugins", ()),
        (["--no-plugin", "api"], "no_plugin", ("api",)),
        (["--hf-overrides", '{"a": [1]}'], "hf_overrides", {"a": [1]}),
        (["--cpu-threads", "4"], "cpu.threads", 4),
        (["--cpu.threads", "4"], "cpu.threads", 4),
        (["--seed", "1", "--seed", "2"], "seed", 2),
    ],
)
def test_spellings(arguments: list[str], name: str, value: object) -> None:
    settings = read(*arguments)
    assert settings[name] == value
    assert settings.source(name).startswith("flag -")


def test_boolean_leaves_other_words_alone() -> None:
    settings = read("--enforce-eager", "my/model")
    assert settings["enforce_eager"] is True
    assert settings.positional == ("my/model",)


def test_everything_after_two_dashes_is_plain() -> None:
    assert read("a", "--", "--port", "b").positional == ("a", "--port", "b")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-modl-len", "5"], ["--max-modl-len", "did you mean --max-model-len"]),
        (["-port", "5"], ["-port", "did you mean --port"]),
        (["--max-num", "5"], ["--max-num ", "--max-num-batched-tokens or --max-num-seqs"]),
        (["--port"], ["--port needs a value"]),
        (["--port", "--host", "x"], ["--port needs a value"]),
        (["--served-model-name"], ["needs a value"]),
        (["--port", "x"], ["flag --port", "whole number", "'x'"]),
        (["--port", "70000"], ["at most 65535", "70000"]),
        (["--max-num-seqs", "0"], ["at least 1"]),
        (["--max-model-len", "1.5"], ["whole number"]),
        (["--max-model-len", "1.0001k"], ["whole number"]),
        (["--gpu-memory-utilization", "nan"], ["at least"]),
        (["--dtype", "float8"], ["auto, half, float16", "'float8'"]),
        (["--enforce-eager=maybe"], ["true/1/yes/on", "'maybe'"]),
        (["--no-enforce-eager=true"], ["takes no value"]),
        (["--hf-overrides", "{"], ["JSON"]),
        (["--preemption-mode", "swap"], ["recompute", "--kv-offload-gib"]),
        (["--cpu-offload-gb", "-1"], ["--cpu-offload-gb", "at least 0"]),
        (["--long-lora-scaling-factors", "2,4"], ["long-lora-scaling-factors must be left out", "rope"]),
        (["--max-log-size", "5"], ["unknown option --max-log-size; --help lists all options"]),
    ],
)
def test_refusals(arguments: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read(*arguments)
    for word in words:
        assert word in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.row("F-199")
def test_precedence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("step-timeout: 1\n")
    found = [read(file=file)]
    monkeypatch.setenv("VLLM_ENGINE_ITERATION_TIMEOUT_S", "2")
    found.append(read(file=file))
    monkeypatch.setenv("LSV_STEP_TIMEOUT", "3")
    found.append(read(file=file))
    found.append(read("--step-timeout", "4", file=file))
    assert [settings["step_timeout"] for settings in found] == [1.0, 2.0, 3.0, 4.0]
    assert [settings.source("step_timeout") for settings in found] == [
        f"file {file}",
        "VLLM_ENGINE_ITERATION_TIMEOUT_S",
        "LSV_STEP_TIMEOUT",
        "flag --step-timeout",
    ]


@pytest.mark.row("F-201")
def test_default_and_its_source() -> None:
    settings = read()
    assert (settings["port"], settings.source("port")) == (8000, "default")
    assert settings["gpu_memory_utilization"] is None


@pytest.mark.row("F-199")
def test_file(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        "max_model_len: 8K\nserved-model-name: [a, b]\nenforce_eager: true\n"
        "hf-overrides: {rope_theta: 5}\nplugins: {cpu: {threads: 2}}\n"
    )
    settings = read(file=file)
    assert read("--max-model-len", "512", file=file)["max_model_len"] == 512, "the command line is stronger"
    assert settings["max_model_len"] == 8192
    assert settings["served_model_name"] == ("a", "b")
    assert settings["enforce_eager"] is True
    assert settings["hf_overrides"] == {"rope_theta": 5}
    assert settings.plugin_options() == {"cpu.threads": 2}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot: 1\n", ["prot", "did you mean port"]),
        ("plugins: {cpu: {treads: 1}}\n", ["cpu-treads", "did you mean cpu-threads"]),
        ("plugins: {cpu: 3}\n", ["cpu", "keys and values"]),
        ("- a\n", ["keys and values"]),
        ("a: [\n", ["can't be read"]),
        ("enforce-eager: 2\n", ["file", "enforce-eager", "true/1"]),
        ("port: [1]\n", ["whole number"]),
        ("host: [1]\n", ["text"]),
    ],
)
def test_bad_files(tmp_path: Path, text: str, words: list[str]) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read(file=file)
    for word in words:
        assert word in caught.value.message


def test_missing_file() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml can't be read"):
        read(file=Path("nowhere.yaml"))


def test_a_file_may_hold_options_of_other_commands(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("port: 1\nseed: 7\n")
    engine = Declared(options.for_scope("engine"))
    settings = gather(engine, {}, file=str(file), known=options.CORE)
    assert settings["seed"] == 7
    assert "port" not in settings


@pytest.mark.row("F-820", "F-848", "F-695")
def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSV_ENFORCE_EAGER", "yes")
    monkeypatch.setenv("LSV_DEVICE", "cpu")
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("VLLM_PLUGINS", "")
    monkeypatch.setenv("VLLM_ATTENTION_BACKEND", "")
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    settings = read()
    assert settings["api_key"] == ("secret",)
    assert settings["enforce_eager"] is True
    assert settings["platform"] == "cpu"
    assert settings["allow_long_max_model_len"] is True
    assert settings["cpu.threads"] == 3
    assert settings["extra_plugins"] == ()
    assert settings["plugins"] is None
    assert settings.source("attention_backend") == "default"


@pytest.mark.row("F-991", "F-847")
def test_booleans_in_variables_are_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "0")
    assert read()["keep_alive_on_engine_death"] is False
    monkeypatch.setenv("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "nope")
    with pytest.raises(ConfigError, match="VLLM_KEEP_ALIVE_ON_ENGINE_DEATH"):
        read()


def test_unknown_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSV_CPU_TREADS", "3")
    monkeypatch.setenv("LSV_PORT", "3")
    (warning,) = unknown_variables(ALL)
    assert "LSV_CPU_TREADS" in warning
    assert "did you mean LSV_CPU_THREADS" in warning


@pytest.mark.row("F-580")
def test_secrets_are_not_handed_to_who_shows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSV_CACHE_ROOT", "/cache")
    for name in ("LSV_API_KEY", "LSV_ADMIN_API_KEY", "VLLM_API_KEY", "LSV_CLUSTER_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, "secret")
    told = own_environment()
    assert told["LSV_CACHE_ROOT"] == "/cache"
    assert "secret" not in told.values()


@pytest.mark.row("F-581")
def test_the_address_of_this_machine_is_not_given_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSV_HOST_IP", "127.0.0.2")
    monkeypatch.setenv("VLLM_HOST_IP", "127.0.0.3")
    assert read_host_ip() == "127.0.0.2"
    assert not any(value.startswith("127.") for value in own_environment().values())


@pytest.mark.row("F-272")
def test_none_in_writing_is_as_if_left_out() -> None:
    assert read("--quantization", "None")["quantization"] is None
    assert read("--max-num-seqs=None")["max_num_seqs"] == 256


def test_none_wins_over_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSV_QUANTIZATION", "fp8")
    assert read("-q", "None")["quantization"] is None


def test_two_settings_with_one_name() -> None:
    with pytest.raises(ConfigError, match=r"cpu_offload_gb and cpu\.offload_gb both claim the name cpu-offload-gb"):
        Declared([*options.CORE, Setting(name="cpu.offload_gb")])


def test_plugin_options_are_the_engines() -> None:
    declared = Declared([PLUGIN, Setting(name="api.heartbeat", scope="serve"), Setting(name="model")])
    assert gather(declared, {}).plugin_options() == {"cpu.threads": 0}


XPU_LAUNCH = """
    --model P --served-model-name N --dtype=float16 --enforce-eager --port 8000 --host 0.0.0.0
    --trust-remote-code --disable-sliding-window --gpu-memory-util=0.9 --no-enable-prefix-caching
    --max-num-batched-tokens=8192 --disable-log-requests --max-model-len=8192 --block-size 64
    --quantization fp8 -tp=1 --device=xpu
"""


def test_the_canonical_launch_is_accepted() -> None:
    settings = read(*XPU_LAUNCH.split())
    assert settings["served_model_name"] == ("N",)
    assert settings["block_size"] == 64
    assert settings["enable_prefix_caching"] is False
