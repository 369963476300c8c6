"""Every choice of ``resolve`` with its reason, and every refusal by name. Runs without torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lsv.config import EngineConfig
from lsv.offers import ModelOffer
from lsv.plugins import Plugins, load
from lsv.resolve import resolve
from lsv.resolve.lengths import own_length
from lsv.resolve.locate import read_config
from lsv.settings import Declared, gather, options
from lsv.settings.flags import parse
from lsv_base.errors import CheckpointError, ConfigError

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "max_position_embeddings": 4096,
    "torch_dtype": "float16",
}


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load(["core", "cpu", "models", "demo"])


@pytest.fixture
def configure(plugins: Plugins, tmp_path: Path):
    """Resolve flags on a checkpoint folder that holds only config.json."""

    def run(*flags: str, **config: object) -> EngineConfig:
        (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **config}))
        declared = Declared(options.for_scope("engine", plugins.settings()))
        line = parse(["--model", str(tmp_path), *flags], declared)
        return resolve(gather(declared, line.given), plugins)

    return run


def why(config: EngineConfig, name: str) -> str:
    return next(reason.why for reason in config.reasons if reason.name == name)


def test_what_is_to_be_known_of_a_native_model_is_told(configure):
    config = configure(architectures=["Qwen2_5OmniModel"], thinker_config={"text_config": LLAMA})
    told = "the native qwen2_5_omni runs it; answers in text alone: weights of the parts that speak are skipped"
    assert why(config, "architecture") == told
    assert config.max_model_len == 4096
    assert not [reason for reason in configure().reasons if reason.name == "architecture"]


def test_stop_tokens_are_the_architectures(configure):
    assert "<|im_end|>" in configure(architectures=["MiniCPMV"]).stop_tokens
    assert configure().stop_tokens == ()


@pytest.mark.row("F-378", "F-446")
def test_defaults_come_with_reasons(configure):
    config = configure()
    assert (config.platform, config.architecture, config.model_offer) == ("cpu", "LlamaForCausalLM", "llama")
    assert config.dtype == "bfloat16"
    assert "float16" in why(config, "dtype")
    assert config.max_model_len == 4096
    assert why(config, "max_model_len") == "the checkpoint's own"
    assert config.max_num_batched_tokens == 2048
    assert config.block_size == 32
    assert config.plugins == ("core", "cpu", "demo", "models", "offline", "runtime")


@pytest.mark.row("F-007")
@pytest.mark.parametrize(
    ("own", "computed"), [("float16", "float16"), ("bfloat16", "bfloat16"), ("float32", "bfloat16")]
)
def test_the_type_of_the_checkpoint_is_kept_unless_it_is_float32(tmp_path: Path, own: str, computed: str):
    loaded = load(["core", "cpu", "cuda", "triton", "torch", "models"])
    declared = Declared(options.for_scope("engine", loaded.settings()))
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "torch_dtype": own}))

    def dtype(*flags: str) -> str:
        line = parse(["--model", str(tmp_path), "--platform", "cuda", "--emulate", *flags], declared)
        return resolve(gather(declared, line.given), loaded).dtype

    assert dtype() == computed
    assert dtype("--dtype", "float") == "float32"
    assert dtype("--dtype", "half") == "float16"


@pytest.mark.row("F-636")
def test_a_model_runs_as_long_as_it_was_trained_for_unless_asked_to_stretch(configure):
    def stretched(*flags: str) -> int:
        return configure(*flags, architectures=["QWenLMHeadModel"], seq_length=2048).max_model_len

    assert stretched() == 2048, "config.json's max_position_embeddings is 4096"
    with pytest.raises(ConfigError, match="more than the checkpoint's 2048"):
        stretched("--max-model-len=4096")
    assert stretched("--max-model-len=4096", "--allow-long-max-model-len") == 4096
    assert configure(architectures=["QWenLMHeadModel"]).max_model_len == 4096, "as converted to GGUF"


@pytest.mark.row("F-429", "F-989")
def test_a_model_that_overflows_in_float16_never_runs_in_it(configure):
    def seeing(*flags: str, architecture: str = "MiniCPMV") -> EngineConfig:
        return configure(*flags, architectures=[architecture])

    for architecture in ("MiniCPMV", "Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"):
        assert seeing(architecture=architecture).dtype == "bfloat16"
        with pytest.raises(ConfigError, match=r"can't run in float16: its activations .*; use bfloat16 or float32"):
            seeing("--dtype=half", architecture=architecture)
    assert seeing("--dtype=float").dtype == "float32"


@pytest.mark.row("F-225", "F-226", "F-237", "F-245", "F-250")
def test_what_is_asked_for_is_taken(configure, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    plain, asked = configure(), configure("--tokenizer", str(other), "--seed=7", "--dtype=float", "--max-logprobs=5")
    assert (plain.model, plain.tokenizer, plain.seed, plain.max_logprobs) == (str(tmp_path), str(tmp_path), 0, 20)
    assert (asked.tokenizer, asked.seed, asked.dtype, asked.max_logprobs) == (str(other), 7, "float32", 5)


@pytest.mark.row("F-242")
def test_overrides_reach_into_what_is_nested(configure, tmp_path):
    given = {"rope_scaling": {"factor": 4.0}, "vocab_size": None, "text_config": {"hidden_size": 8}}
    config = configure("--hf-overrides", json.dumps(given), rope_scaling={"rope_type": "linear", "factor": 2.0})
    read = read_config(tmp_path, config.overrides)
    assert read["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    assert (read["vocab_size"], read["text_config"]) == (None, {"hidden_size": 8})


@pytest.mark.row("F-234")
@pytest.mark.parametrize("name", ["npcache", "pt", "fastsafetensors"])
def test_formats_that_are_others_by_another_name(configure, name):
    assert configure("--load-format", name).load_format == {"fastsafetensors": "safetensors"}.get(name, "pt")


def test_sampling_that_a_checkpoint_recommends_is_logged(configure, tmp_path):
    assert not [reason for reason in configure().reasons if reason.name == "default_sampling"]
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "top_k": 20}))
    (reason,) = [reason for reason in configure().reasons if reason.name == "default_sampling"]
    assert reason.value == "temperature=0.6 top_k=20"
    assert reason.why == "recommended by the checkpoint's generation_config.json; requests may override them"
    both = why(configure("--override-generation-config", '{"min_p": 0.1}'), "default_sampling")
    assert both.endswith("generation_config.json, set by override_generation_config; requests may override them")
    assert not configure("--generation-config", "vllm").reasons or "default_sampling" not in [
        reason.name for reason in configure("--generation-config", "vllm").reasons
    ]


def test_another_tokenizer_does_not_change_the_models_sampling(configure, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.6}))
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text("{}")
    assert configure().generation is None
    assert configure("--tokenizer", str(other)).generation == str(tmp_path)


def test_no_model_means_the_default_alias(plugins):
    declared = Declared(options.for_scope("engine", plugins.settings()))
    config = resolve(gather(declared, {}), plugins)
    assert config.served_names == ("lsv-demo",)


def test_a_model_is_called_by_the_name_of_its_folder_and_answers_to_its_path(configure, tmp_path):
    config = configure()
    assert (config.served_names, config.unlisted_names) == ((tmp_path.name,), (str(tmp_path),))


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 16384),
        ({"type": "dynamic", "factor": 2.0}, 8192),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 512}, 4096),
    ],
)
def test_rope_scaling_counts_in_the_length(configure, rope, length):
    assert configure(rope_scaling=rope).max_model_len == length


def test_a_family_knows_the_length_that_its_files_leave_out():
    family, scaled = ModelOffer("a", ("A",), "a:A", positions=131072), {"rope_type": "linear", "factor": 8.0}
    assert own_length({"text_config": {"rope_scaling": scaled}}, family) == 131072
    assert own_length({"llm_config": {"rope_scaling": scaled}}, family) == 131072
    with pytest.raises(CheckpointError, match="text_config must be an object"):
        own_length({"text_config": [1]}, family)
    assert own_length({"text_config": {"rope_scaling": scaled, "max_position_embeddings": 1024}}, family) == 8192


@pytest.mark.row("F-238", "F-389", "F-848")
def test_a_longer_context_needs_an_explicit_word(configure):
    with pytest.raises(ConfigError, match="more than the checkpoint's 4096") as refusal:
        configure("--max-model-len", "8192")
    assert refusal.value.param == "max_model_len"
    assert configure("--max-model-len", "8192", "--allow-long-max-model-len").max_model_len == 8192


BERT = {"architectures": ["XLMRobertaForSequenceClassification"], "model_type": "xlm-roberta"}


@pytest.mark.parametrize("allowed", [(), ("--allow-long-max-model-len",)])
@pytest.mark.parametrize(
    ("checkpoint", "asked", "most", "table"),
    [
        (BERT | {"max_position_embeddings": 514}, 2048, 512, 512),
        ({"architectures": ["WhisperForConditionalGeneration"], "max_position_embeddings": None,
          "max_target_positions": 448}, 5120, 448, 448),
        ({"architectures": ["OPTForCausalLM"], "max_position_embeddings": 2048}, 4096, 2048, 2048),
        ({"architectures": ["BartForConditionalGeneration"], "max_position_embeddings": 1024,
          "decoder_start_token_id": 2, "vocab_size": 320}, 4096, 1024, 1024),
    ],
)  # fmt: skip
@pytest.mark.row("F-238", "F-389", "F-668", "F-737")
def test_a_context_is_lowered_to_a_table_of_positions(allowed, checkpoint, asked, most, table, configure, caplog):
    config = configure("--max-model-len", str(asked), *allowed, **checkpoint)
    assert config.max_model_len == most
    assert why(config, "max_model_len") == f"lowered from {asked}: the model has a table of {table} positions"
    told = [record for record in caplog.records if record.levelname == "WARNING"]
    assert [record.getMessage() for record in told] == [
        f"max_model_len={asked} is lowered to {most}: the model has a table of {table} positions"
    ]
    assert configure("--max-model-len", "64", **checkpoint).max_model_len == 64


def test_other_files_limit_a_context_until_a_longer_one_is_allowed(configure, tmp_path, caplog):
    (tmp_path / "modules.json").write_text("[]")
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 256}')
    checkpoint = {"architectures": ["BertModel"], "max_position_embeddings": 512}
    assert configure("--max-model-len", "2048", **checkpoint).max_model_len == 256
    assert "max_model_len=2048 is lowered to 256: the checkpoint was made for 256" in caplog.text
    assert configure("--max-model-len", "2048", "--allow-long-max-model-len", **checkpoint).max_model_len == 512


@pytest.mark.row("F-241")
def test_a_disabled_window_caps_the_context(configure):
    config = configure("--disable-sliding-window", architectures=["MistralForCausalLM"], sliding_window=512)
    assert config.max_model_len == 512
    assert config.overrides["sliding_window"] is None


def test_a_disabled_window_is_that_of_the_language_model(configure):
    """In a checkpoint with towers that is served whole."""
    text = {**LLAMA, "sliding_window": 512, "layer_types": ["sliding_attention"]}
    config = configure("--disable-sliding-window", architectures=["LlavaForConditionalGeneration"], text_config=text)
    assert config.max_model_len == 512
    assert config.overrides["text_config"] == {"sliding_window": None, "layer_types": None}


@pytest.mark.row("F-998")
@pytest.mark.parametrize(
    ("flags", "config", "words"),
    [
        (("--block-size", "48"), {}, "block_size=48: cpu-paged allows"),
        (("--quantization", "fp9"), {}, "fp9"),
        (("--quantization-ignore", "lm_head"), {}, "quantization_ignore needs --quantization"),
        (("--qlora-adapter-name-or-path", "org/x"), {}, "names the layers to quantise: add --quantization"),
        ((), {"quantization_config": {"quant_method": "mystery"}}, "quantised as 'mystery'"),
        (("--platform", "abacus"), {}, "abacus"),
        (("--attention-backend", "cpu-pagd"), {}, "cpu-paged"),
        (("--kv-cache-dtype", "fp3"), {}, "kv_cache_dtype fp3"),
        (("-pp", "2", "--pipeline-layer-partition", "1,1,1"), {}, "each of 2 stages"),
        (("-pp", "2", "--pipeline-layer-partition", "one,two"), {}, "pipeline_layer_partition=one,two"),
        (("-pp", "2", "--load-format", "sharded_state"), {}, "sharded_state: not with pipeline_parallel_size=2"),
        (("-pp", "2", "--executor", "inline"), {}, "several need executor processes"),
        (("-tp", "2", "--executor", "external_launcher"), {}, "started by another launcher can't share a model here"),
        (("--logprobs-mode", "raw_logits"), {}, "must be one of raw_logprobs, processed_logprobs"),
        (("--no-enable-chunked-prefill", "--max-num-batched-tokens", "128"), {}, "needs chunked prefill"),
        (("--no-enable-chunked-prefill", "--max-itl-ms", "50"), {}, "max_itl_ms=50 needs chunked prefill"),
        ((), {"architectures": []}, "names no architecture"),
    ],
)
def test_what_cannot_be_is_refused_by_name(configure, flags, config, words):
    with pytest.raises(ConfigError, match=words):
        configure(*flags, **config)


def test_an_engine_of_a_process_that_a_launcher_started(configure):
    config = configure("--distributed-executor-backend", "external_launcher", "--logprobs-mode", "processed_logprobs")
    assert (config.executor, config.processed_logprobs) == ("inline", True)
    assert not configure().processed_logprobs


def test_missing_and_broken_checkpoints(plugins, tmp_path):
    declared = Declared(options.for_scope("engine", plugins.settings()))

    def attempt(model: str) -> None:
        resolve(gather(declared, parse(["--model", model], declared).given), plugins)

    with pytest.raises(CheckpointError, match="there is no folder"):
        attempt(str(tmp_path / "nothing"))
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        attempt(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        attempt(str(tmp_path))


def test_the_fingerprint_names_what_matters(configure):
    first, again, other = configure(), configure(), configure("--seed", "1")
    assert first.fingerprint() == again.fingerprint()
    assert first.fingerprint() != other.fingerprint()


@pytest.mark.row("F-279", "F-999", "F-573")
def test_two_ranks_run_in_processes(configure):
    assert configure("-tp", "2").executor == "processes"
    assert configure().executor == "inline"


@pytest.mark.row("F-280", "F-341", "F-567", "F-832")
def test_stages_have_a_step_in_flight_each(configure, monkeypatch):
    config = configure("-pp", "2", "-tp", "2")
    assert (config.executor, config.in_flight, config.topology.ranks) == ("processes", 2, 4)
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", "3,1")
    assert configure("--pipeline_parallel_size", "2").topology.layers == (3, 1)


@pytest.mark.row("F-999", "F-573")
def test_the_executor_that_is_asked_for(configure):
    assert configure("--executor", "processes").executor == "processes"
    assert configure("--distributed-executor-backend", "mp").executor == "processes"
    assert configure("--distributed-executor-backend", "uni").executor == "inline"
    assert configure("--distributed-executor-backend", "uni", "-tp", "2").executor == "processes"
    for flags, words in (
        (("--executor", "inline", "-tp", "2"), "several need executor processes"),
        (("--executor", "clouds"), "no executor 'clouds'"),
        (("--distributed-executor-backend", "ray"), "no executor 'ray'"),
    ):
        with pytest.raises(ConfigError, match=words):
            configure(*flags)


def test_no_limit_between_tokens_unless_asked_for(configure):
    assert configure("--max-itl-ms", "50").max_itl_ms == 50.0
    assert configure("--max-itl-ms", "0").max_itl_ms is configure().max_itl_ms is None


@pytest.mark.parametrize(
    ("flags", "length", "kept"),
    [((), 2048, 16384), ((), 24_000, 24_000), ((), 131_072, 32768), (("--encoder-cache-tokens", "64"), 2048, 64)],
)
def test_the_largest_item_that_fits_a_prompt_can_be_encoded(configure, flags, length, kept):
    assert configure(*flags, max_position_embeddings=length).encoder_cache_tokens == kept


def test_resolving_imports_no_torch():
    import subprocess

    code = (
        "import sys; from lsv.plugins import load; from lsv.resolve import resolve;"
        "from lsv.settings import Declared, gather, options; p = load();"
        "resolve(gather(Declared(options.for_scope('engine', p.settings())), {}), p);"
        "print(sorted({'torch', 'transformers', 'sanic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
