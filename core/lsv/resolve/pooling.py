"""What a checkpoint is for and how it pools: from its architecture, the files of sentence-transformers, and options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec

from lsv.config import Choices
from lsv.offers import ModelOffer
from lsv.request.pooling import Activation, ModelTask, Pooler
from lsv.resolve.sentence import Sentence, read_sentence
from lsv.settings import Settings
from lsv_base.errors import CheckpointError, ConfigError
from lsv_base.untrusted.files import read_regular

HEADS: Mapping[str, ModelTask] = {
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "token_classify",
    "ForRewardModel": "reward",
    "ForProcessRewardModel": "reward",
    "ForMaskedLM": "embed",
    "HeadModel": "generate",
    "Model": "embed",
}
"""By the end of an architecture's name; the first one that fits."""
_ASKED: Mapping[str, ModelTask] = {
    "generate": "generate", "embed": "embed", "embedding": "embed", "classify": "classify", "score": "classify",
    "reward": "reward",
}  # fmt: skip
_KINDS = {"CLS": "cls", "LAST": "last", "MEAN": "mean", "MAX": "max"}
"""Pooling types of vLLM's pooler configs that are one vector."""
_BY_TOKEN = {"ALL", "STEP"}
_ACTIVATIONS: Mapping[str, Activation] = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"}
_PROBLEMS: Mapping[str, Activation] = {
    "regression": "none", "single_label_classification": "softmax", "multi_label_classification": "sigmoid",
}  # fmt: skip
_SIZES = ("hidden_size", "d_model", "n_embd", "dim", "embedding_size")


def choose_pooler(
    settings: Settings, checkpoint: Mapping[str, Any], folder: Path, offer: ModelOffer, choices: Choices
) -> tuple[Pooler, int | None]:
    """How the model pools, and the most tokens that sentence-transformers gave it.

    Raises ``ConfigError`` for a task that the checkpoint was not made for, ``CheckpointError`` for its files.
    """
    architecture = str(checkpoint["architectures"][0])
    sentence = read_sentence(folder)
    task = _choose_task(settings, architecture, sentence, offer, choices)
    pooler = _read_pooler(task, checkpoint, folder, offer, sentence)
    if task == "classify" and _asked(settings, task) == "embed":
        choices.note("task", "embed", "asked for: vectors as well as the labels of the checkpoint's head")
        pooler = msgspec.structs.replace(pooler, embeds=True)
    return _configured(pooler, settings), None if sentence is None else sentence.max_len


def is_cached(checkpoint: Mapping[str, Any], offer: ModelOffer, pooler: Pooler) -> bool:
    """Whether tokens see only those before them, so that what is kept of these can be used again.

    Raises ``ConfigError`` for a model that sees both sides where it is to generate.
    """
    if offer.causal and checkpoint.get("is_causal") is not False:
        return True
    if pooler.task == "generate":
        raise ConfigError(
            "the model's tokens attend to later tokens (is_causal is false), so it can't generate: add --task embed",
            param="task",
        )
    return False


def _choose_task(
    settings: Settings, architecture: str, sentence: Sentence | None, offer: ModelOffer, choices: Choices
) -> ModelTask:
    own: ModelTask = next((task for head, task in HEADS.items() if architecture.endswith(head)), "generate")
    if own == "embed" and "embed" not in offer.tasks:
        own = "generate"  # some families call the whole model so
    why = f"the architecture is {architecture}"
    if own == "generate" and sentence is not None and architecture.endswith("ForCausalLM"):
        own, why = "embed", "modules.json makes vectors of its states"
    asked = _asked(settings, own)
    task = own if asked is None or (asked == "embed" and own in ("embed", "classify")) else asked
    if task != own:
        if not (
            own == "generate" or (own == "embed" and sentence is not None and architecture.endswith("ForCausalLM"))
        ):
            raise ConfigError(f"--task {task}: the checkpoint is made to {own} ({why})", param="task")
        why = "asked for"
    if offer.adapts and task not in offer.tasks:
        raise ConfigError(
            f"{architecture}: models that {task.replace('_', ' ')} run natively alone, and no plugin has this one",
            param="model",
        )
    if task != "generate" or asked is not None:
        choices.note("task", task, why)
    return task


def _asked(settings: Settings, own: ModelTask) -> ModelTask | None:
    """What ``--task``, ``--runner`` and ``--convert`` ask for together; None for what the checkpoint is made for.

    Raises ``ConfigError`` where they contradict one another.
    """
    found = {_ASKED[settings[name]] for name in ("task", "convert") if settings[name] in _ASKED}
    if settings["runner"] == "generate":
        found.add("generate")
    if settings["runner"] == "pooling" and not found and own == "generate":
        found.add("embed")
    if len(found) > 1 or (settings["runner"] == "pooling" and found == {"generate"}):
        given = ", ".join(f"--{name} {settings[name]}" for name in ("task", "runner", "convert"))
        raise ConfigError(f"{given} contradict one another: --task alone says it all", param="task")
    return next(iter(found), None)


def _read_pooler(
    task: ModelTask, checkpoint: Mapping[str, Any], folder: Path, offer: ModelOffer, sentence: Sentence | None
) -> Pooler:
    named = checkpoint.get("id2label")
    labels = tuple(str(one) for _, one in sorted(named.items(), key=_by_number)) if isinstance(named, Mapping) else ()
    if not labels and task in ("classify", "token_classify", "reward"):
        count = checkpoint.get("num_labels", 1 if task == "reward" else 2)
        labels = tuple(f"LABEL_{number}" for number in range(count if isinstance(count, int) else 1))
    contrast = _contrast(checkpoint, folder) if task == "classify" else None
    labels = labels[:1] if contrast else labels
    process = task == "reward" and "ForProcessReward" in str(checkpoint["architectures"][0])
    if task == "reward" and not process:
        labels = labels[:1] if "num_labels" not in checkpoint and not isinstance(named, Mapping) else labels
    text = checkpoint.get("text_config")
    config = {**checkpoint, **(text if isinstance(text, Mapping) else {})}
    pooler = Pooler(
        task=task,
        kind=offer.pooling,
        activation="softmax" if process else _activation(task, checkpoint, len(labels)),
        labels=labels if task in ("classify", "token_classify", "reward") else (),
        size=next((config[key] for key in _SIZES if isinstance(config.get(key), int)), None),
        dimensions=_dimensions(checkpoint),
        contrast=contrast,
    )
    if task == "classify" and checkpoint.get("classifier_pooling") is not None:
        pooler = msgspec.structs.replace(pooler, kind=_kind(checkpoint["classifier_pooling"], "classifier_pooling"))
    if sentence is None or task not in ("generate", "embed"):
        return pooler
    return msgspec.structs.replace(
        pooler,
        kind=sentence.kind or pooler.kind,
        normalize=sentence.normalize,
        dense=sentence.dense,
        size=sentence.size or pooler.size,
        prompts=sentence.prompts,
        default_prompt=sentence.default_prompt,
    )


def _by_number(item: tuple[str, Any]) -> tuple[int, str]:
    number = str(item[0])
    return (int(number) if number.isdecimal() else 1 << 31), number


def _kind(name: object, key: str) -> Any:
    found = _KINDS.get(str(name).upper())
    if found is None:
        raise ConfigError(f"{key} {name!r:.100} is not one of {', '.join(_KINDS)}", param="pooler_config")
    return found


def _activation(task: ModelTask, checkpoint: Mapping[str, Any], labels: int) -> Activation:
    """What makes probabilities: as a cross-encoder's config says, else by its kind of problem and number of labels."""
    if task not in ("classify", "token_classify"):
        return "none"
    nested = checkpoint.get("sentence_transformers")
    named = (nested.get("activation_fn") if isinstance(nested, Mapping) else None) or checkpoint.get(
        "sbert_ce_default_activation_function"
    )
    if named is not None:
        name = str(named).rpartition(".")[2]
        if name not in _ACTIVATIONS:
            known = ", ".join(_ACTIVATIONS)
            raise CheckpointError(f"config.json: the activation of scores {name:.100} is not one of {known}")
        return _ACTIVATIONS[name]
    return _PROBLEMS.get(str(checkpoint.get("problem_type")), "softmax" if labels > 1 else "sigmoid")


def _dimensions(checkpoint: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The sizes that config.json allows vectors to be cut to."""
    sizes = checkpoint.get("matryoshka_dimensions")
    if isinstance(sizes, list) and all(isinstance(size, int) and size > 0 for size in sizes) and sizes:
        return tuple(sizes)
    return () if checkpoint.get("is_matryoshka") else None


def _contrast(checkpoint: Mapping[str, Any], folder: Path) -> tuple[int, int] | None:
    """The ids of the two tokens that ``classifier_from_token`` names."""
    names = checkpoint.get("classifier_from_token")
    if names is None:
        return None
    vocabulary = _vocabulary(folder)
    if not isinstance(names, list) or len(names) != 2 or not all(name in vocabulary for name in names):
        raise ConfigError(
            f'classifier_from_token {names!r:.100} must be two tokens of the vocabulary, such as ["no", "yes"]',
            param="hf_overrides",
        )
    return vocabulary[names[0]], vocabulary[names[1]]


def _vocabulary(folder: Path) -> Mapping[str, int]:
    for name, place in (("tokenizer.json", "model"), ("vocab.json", None)):
        file = folder / name
        if file.is_file():
            found = json.loads(read_regular(file))
            vocabulary = found.get(place, {}).get("vocab") if place else found
            return vocabulary if isinstance(vocabulary, dict) else {}
    return {}


def _configured(pooler: Pooler, settings: Settings) -> Pooler:
    """With what ``--pooler-config`` says. Raises ``ConfigError`` for what it can't say."""
    given = {**(settings["pooler_config"] or {})}
    changes: dict[str, Any] = {}
    for key, value in given.items():
        if value is None:
            continue
        if key in ("pooling_type", "seq_pooling_type", "tok_pooling_type"):
            if str(value).upper() not in _BY_TOKEN:
                changes["kind"] = _kind(value, key)
            elif pooler.task in ("generate", "embed", "classify"):
                raise ConfigError(
                    f"pooler_config: {key} {value} gives a vector a token, which requests ask for by their task",
                    param="pooler_config",
                )
        elif key == "normalize":
            changes["normalize"] = bool(value)
        elif key in ("activation", "use_activation", "softmax"):
            if not value:
                changes["activation"] = "none"
            elif key == "softmax":
                changes["activation"] = "softmax"
        elif key == "dimensions":
            pooler.check_dimensions(value)
            changes["size"] = value
        elif key == "step_tag_id":
            changes["step_token"] = int(value)
        elif key == "enable_chunked_processing":
            if value and pooler.task not in ("generate", "embed"):
                raise ConfigError(
                    f"pooler_config: {key} makes one vector of a long text, and this model is made to {pooler.task}",
                    param="pooler_config",
                )
            changes["pieces"] = bool(value)
        elif key == "max_embed_len":
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"pooler_config: {key} must be at least 1, got {value!r:.40}", param="pooler_config")
            changes["longest"] = value
        else:
            raise ConfigError(
                f"pooler_config: {key} is not one of pooling_type, normalize, use_activation, softmax, dimensions, "
                "step_tag_id, enable_chunked_processing, max_embed_len",
                param="pooler_config",
            )
    return msgspec.structs.replace(pooler, **changes)


assert set(HEADS.values()) <= set(get_args(ModelTask))
