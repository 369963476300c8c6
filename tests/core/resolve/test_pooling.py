"""What a checkpoint is for, and how it pools: by its architecture, its files, and what is asked for."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from lsv.config import Choices
from lsv.offers import ModelOffer
from lsv.request.pooling import Pooler
from lsv.resolve.architecture.choice import find_offer
from lsv.resolve.pooling import choose_pooler, is_cached
from lsv.resolve.sentence import read_sentence
from lsv_base.errors import CheckpointError, ConfigError
from lsv_testing.catalog import catalog_of

LANGUAGE = ModelOffer("llama", ("LlamaForCausalLM",), "x:y", ("generate", "embed"))
WHOLE = ModelOffer("chatglm", ("ChatGLMModel",), "x:y", ("generate",))
ENCODER = ModelOffer("bert", ("BertModel",), "x:y", ("embed",), causal=False, pooling="cls")
FALLBACK = ModelOffer("transformers", (), "x:y", ("generate", "embed"), fallback=True, adapts=True)
UNASKED = {"task": "auto", "runner": "auto", "convert": "auto", "pooler_config": None}
PREFIX = "sentence_transformers.models."


def catalog_with(*offers: ModelOffer):
    return catalog_of(SimpleNamespace(lsv_models=lambda: offers))


def write_modules(folder: Path, *kinds: str, mode: str = "pooling_mode_mean_tokens", **more: bool) -> None:
    modules = [{"idx": 0, "path": "", "type": f"{PREFIX}Transformer"}]
    modules += [{"idx": place, "path": f"{place}_{kind}", "type": PREFIX + kind} for place, kind in enumerate(kinds, 1)]
    (folder / "modules.json").write_text(json.dumps(modules))
    for place, kind in enumerate(kinds, 1):
        if kind != "Normalize":
            (folder / f"{place}_{kind}").mkdir(exist_ok=True)
            content = {mode: True, **more} if kind == "Pooling" else {"out_features": 7}
            (folder / f"{place}_{kind}" / "config.json").write_text(json.dumps(content))


def choose(folder, architecture, offer=LANGUAGE, *, config=None, **asked) -> Pooler:
    checkpoint = {"architectures": [architecture], "hidden_size": 8, **(config or {})}
    return choose_pooler({**UNASKED, **asked}, checkpoint, folder, offer, Choices())[0]


@pytest.mark.parametrize(("asked", "found"), [("auto", LANGUAGE), ("native", LANGUAGE), ("transformers", FALLBACK)])
def test_an_implementation_may_be_asked_for(asked, found):
    assert find_offer(catalog_with(LANGUAGE, FALLBACK), "LlamaForCausalLM", asked) == found


def test_an_implementation_that_there_is_not_is_refused():
    with pytest.raises(ConfigError, match=r"model_impl=native.*StrangeForCausalLM"):
        find_offer(catalog_with(LANGUAGE, FALLBACK), "StrangeForCausalLM", "native")
    with pytest.raises(ConfigError, match=r"model_impl=transformers.*LlamaForCausalLM"):
        find_offer(catalog_with(LANGUAGE), "LlamaForCausalLM", "transformers")
    adapted = ModelOffer("odd", ("OddForCausalLM",), "x:y", adapts=True)
    assert find_offer(catalog_with(adapted, FALLBACK), "OddForCausalLM", "transformers") == adapted
    with pytest.raises(ConfigError, match=r"model_impl=native.*OddForCausalLM"):
        find_offer(catalog_with(adapted, FALLBACK), "OddForCausalLM", "native")


@pytest.mark.row("F-243", "F-741")
@pytest.mark.parametrize(
    ("architecture", "task", "tasks"),
    [
        ("LlamaForCausalLM", "generate", ("generate", "embed", "token_embed", "score")),
        ("LlamaModel", "embed", ("embed", "token_embed", "score")),
        ("GPT2LMHeadModel", "generate", ("generate", "embed", "token_embed", "score")),
        ("BertForMaskedLM", "embed", ("embed", "token_embed", "score")),
        ("LlamaForSequenceClassification", "classify", ("classify",)),
        ("BertForTokenClassification", "token_classify", ("token_classify",)),
        ("Qwen2ForRewardModel", "reward", ("reward",)),
    ],
)
def test_the_task_follows_from_the_architecture(architecture, task, tasks, tmp_path):
    found = choose(tmp_path, architecture)
    assert (found.task, found.tasks) == (task, tasks)


def test_a_name_of_a_bare_model_may_be_that_of_a_whole_one(tmp_path):
    assert choose(tmp_path, "ChatGLMModel", WHOLE).task == "generate"


def test_the_files_of_sentence_transformers_say_how_states_are_pooled(tmp_path):
    write_modules(tmp_path, "Pooling", "Dense", "Normalize")
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 99, "do_lower_case": False}))
    prompts = {"prompts": {"query": "q: ", "document": "d: "}, "default_prompt_name": "document"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    checkpoint = {"architectures": ["LlamaForCausalLM"], "hidden_size": 8}
    found, length = choose_pooler(UNASKED, checkpoint, tmp_path, LANGUAGE, Choices())
    assert length == 99
    assert found == Pooler(
        task="embed", kind="mean", normalize=True, dense=("2_Dense",), size=7, prompts=prompts["prompts"],
        default_prompt="d: ",
    )  # fmt: skip
    assert choose(tmp_path, "LlamaForCausalLM", task="generate").tasks[0] == "generate"
    write_modules(tmp_path, "Pooling", mode="pooling_mode_cls_token")
    assert not choose(tmp_path, "BertModel", ENCODER).normalize


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("pooling_mode_lasttoken", "last"), ("pooling_mode_max_tokens", "max"), ("pooling_mode_cls_token", "cls"),
     ("pooling_mode_mean_sqrt_len_tokens", "sqrt"), ("pooling_mode_weightedmean_tokens", "weighted")],
)  # fmt: skip
def test_kinds_of_pooling(mode, kind, tmp_path):
    write_modules(tmp_path, "Pooling", mode=mode)
    assert read_sentence(tmp_path).kind == kind


def test_modules_that_are_not_known_are_refused(tmp_path):
    write_modules(tmp_path, "LSTM")
    with pytest.raises(CheckpointError, match="LSTM"):
        read_sentence(tmp_path)
    write_modules(tmp_path, "Pooling", pooling_mode_cls_token=True)
    with pytest.raises(CheckpointError, match="cls and mean"):
        read_sentence(tmp_path)
    (tmp_path / "modules.json").write_text(json.dumps([{"idx": 0, "path": "../../etc", "type": f"{PREFIX}Pooling"}]))
    with pytest.raises(CheckpointError, match="leaves the checkpoint"):
        read_sentence(tmp_path)
    for damaged in ("{", "{}", "[1]"):
        (tmp_path / "modules.json").write_text(damaged)
        with pytest.raises(CheckpointError, match="list of modules"):
            read_sentence(tmp_path)


@pytest.mark.row("F-243", "F-737")
@pytest.mark.parametrize(("labels", "scores"), [(1, ("score",)), (3, ())])
@pytest.mark.parametrize("asked", [{"task": "embed"}, {"task": "embedding"}, {"convert": "embed"}])
@pytest.mark.parametrize("architecture", ["XLMRobertaForSequenceClassification", "LlamaForSequenceClassification"])
def test_a_classifier_that_is_to_embed_keeps_its_labels(labels, scores, asked, architecture, tmp_path):
    found = choose(tmp_path, architecture, config={"num_labels": labels}, **asked)
    assert found.tasks == ("classify", *scores, "embed", "token_embed")
    assert found.own == "embed"
    assert not choose(tmp_path, architecture, runner="pooling").embeds


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        ("LlamaForSequenceClassification", "classify"), ("BertForTokenClassification", "token_classify"),
        ("Qwen2ForRewardModel", "reward"), ("LlamaModel", "embed"), ("LlamaForCausalLM", "embed"),
    ],
)  # fmt: skip
def test_a_runner_for_pooling_leaves_the_checkpoint_its_task(architecture, task, tmp_path):
    assert choose(tmp_path, architecture, runner="pooling").task == task


def test_options_say_what_the_checkpoint_does_not(tmp_path):
    assert choose(tmp_path, "LlamaForCausalLM", task="embed").task == "embed"
    assert choose(tmp_path, "LlamaForCausalLM", runner="pooling").task == "embed"
    assert choose(tmp_path, "LlamaForCausalLM", runner="pooling", convert="classify").task == "classify"
    found = choose(tmp_path, "LlamaForCausalLM", pooler_config={"pooling_type": "MEAN", "normalize": False})
    assert (found.kind, found.normalize, found.pieces) == ("mean", False, False)
    found = choose(tmp_path, "LlamaForCausalLM", pooler_config={"enable_chunked_processing": True, "max_embed_len": 9})
    assert (found.pieces, found.longest) == (True, 9)
    for asked in ({"task": "generate", "runner": "pooling"}, {"task": "embed", "convert": "classify"}):
        with pytest.raises(ConfigError, match="contradict"):
            choose(tmp_path, "LlamaForCausalLM", **asked)
    for architecture, asked in (("BertModel", "generate"), ("BertForTokenClassification", "embed")):
        with pytest.raises(ConfigError, match=f"--task {asked}"):
            choose(tmp_path, architecture, task=asked)
    with pytest.raises(ConfigError, match="one vector of a long text"):
        choose(tmp_path, "LlamaForSequenceClassification", pooler_config={"enable_chunked_processing": True})
    for config in ({"pooling_type": "SUM"}, {"colour": 1}, {"pooling_type": "ALL"}, {"max_embed_len": 0}):
        with pytest.raises(ConfigError, match="pool"):
            choose(tmp_path, "LlamaForCausalLM", pooler_config=config)


@pytest.mark.parametrize(
    ("config", "activation"),
    [
        ({"num_labels": 1}, "sigmoid"),
        ({"id2label": {"0": "no", "1": "yes"}}, "softmax"),
        ({"id2label": {"0": "no", "1": "yes"}, "problem_type": "multi_label_classification"}, "sigmoid"),
        ({"num_labels": 1, "problem_type": "regression"}, "none"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "none"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, "sigmoid"),
    ],
)
def test_activations_of_classifiers(config, activation, tmp_path):
    assert choose(tmp_path, "BertForSequenceClassification", ENCODER, config=config).activation == activation


def test_labels_stand_in_the_order_of_their_numbers(tmp_path):
    config = {"id2label": {"10": "k", "2": "c", "0": "a"}}
    assert choose(tmp_path, "BertForSequenceClassification", ENCODER, config=config).labels == ("a", "c", "k")


def test_rerankers_by_yes_and_no(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"no": 3, "yes": 5}}}))
    config = {"classifier_from_token": ["no", "yes"]}
    found = choose(tmp_path, "LlamaForSequenceClassification", config=config)
    assert (found.contrast, len(found.labels), found.activation) == ((3, 5), 1, "sigmoid")
    with pytest.raises(ConfigError, match="two tokens of the vocabulary"):
        choose(tmp_path, "LlamaForSequenceClassification", config={"classifier_from_token": ["no", "oui"]})


def test_matryoshka(tmp_path):
    assert choose(tmp_path, "BertModel", ENCODER).dimensions is None
    assert choose(tmp_path, "BertModel", ENCODER, config={"is_matryoshka": True}).dimensions == ()
    assert choose(tmp_path, "BertModel", ENCODER, config={"matryoshka_dimensions": [4, 8]}).dimensions == (4, 8)


def test_heads_of_models_that_only_the_adapter_runs_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="natively alone"):
        choose(tmp_path, "FalconForSequenceClassification", FALLBACK)


def test_models_whose_tokens_see_both_sides_are_not_cached():
    assert is_cached({}, LANGUAGE, Pooler())
    assert not is_cached({}, ENCODER, Pooler(task="embed"))
    assert not is_cached({"is_causal": False}, LANGUAGE, Pooler(task="embed"))
    with pytest.raises(ConfigError, match="can't generate"):
        is_cached({"is_causal": False}, LANGUAGE, Pooler())
