"""The files behind the options of a model: its folder, its tokenizer's, and how weights are read there."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

from lsv.config import Choices
from lsv.offers import CheckpointOffer
from lsv.plugins.catalog import Catalog
from lsv.resolve.hub import SAVED_BY_TORCH, Hub, fetch_code, is_name
from lsv.resolve.locate import locate_model
from lsv.settings import Settings
from lsv_base.errors import ConfigError
from lsv_base.processes.confinement.terms import Mode
from lsv_base.untrusted.files import WEIGHTS, open_regular

_LOAD_FORMATS = ("auto", "safetensors", "pt", "sharded_state", "dummy")
_TEKKEN = "tekken.json"
_READING_FASTER = {"enable_multithread_load", "num_threads"}
"""What other servers read weights faster by."""
_FOREIGN = (
    ("openvino_model.xml", "OpenVINO"),
    ("openvino/*.xml", "OpenVINO"),
    ("*.onnx", "ONNX"),
    ("onnx/*.onnx", "ONNX"),
    ("*.engine", "TensorRT"),
    ("tf_model.h5", "TensorFlow"),
    ("flax_model.msgpack", "Flax"),
    ("*.mlmodelc", "Core ML"),
    ("*.mlpackage", "Core ML"),
    ("*.tflite", "TensorFlow Lite"),
)
"""File patterns of other programs' models."""
_CTRANSLATE2 = "model.bin"
_HEADER = 64
"""Bytes at the beginning of a file that identify its program."""


def hub_of(settings: Settings, revision: str | None) -> Hub:
    """Where models are fetched from, at a revision, and what of them."""
    return Hub(
        revision,
        settings["download_dir"],
        settings["ignore_patterns"],
        modelscope=settings["use_modelscope"],
        code=settings["trust_remote_code"],
        pickled=settings["load_format"] == "pt",
    )


def model_folder(name: str, settings: Settings, catalog: Catalog) -> Path:
    """The folder of the model, which may have to be fetched."""
    return locate_model(name, catalog, hub_of(settings, settings["revision"]))


def remote_code(settings: Settings) -> Mode | None:
    """How code of the checkpoint is confined; None where it is not trusted."""
    mode: Mode = settings["confinement"]
    return mode if settings["trust_remote_code"] else None


def code_folder(settings: Settings, folder: Path) -> Path:
    """Where the code of the model's config is: in its folder, or in what is fetched of another revision.

    Raises ``ConfigError`` for another revision of what is no repository.
    """
    name, revision = settings["model"], settings["code_revision"]
    if revision in (None, settings["revision"]):
        return folder
    if name is None or not is_name(name) or Path(name).expanduser().exists():
        raise ConfigError(
            f"code_revision {revision}: {name or folder} is a folder, which has one revision of its code: leave it out",
            param="code_revision",
        )
    return fetch_code(name, hub_of(settings, revision))


def tokenizer_folder(settings: Settings, model: str, folder: Path, catalog: Catalog) -> Path:
    """The model's own folder, or that of another tokenizer, or of another revision of it."""
    name, revision = settings["tokenizer"], settings["tokenizer_revision"]
    if name is None and revision in (None, settings["revision"]):
        return folder
    return locate_model(name or model, catalog, hub_of(settings, revision))


def tokenizer_place(settings: Settings, folder: Path) -> Path:
    """What of a tokenizer's folder is read: the folder, or the file that is asked for. Raises ``ConfigError``."""
    if settings["tokenizer_mode"] == "auto":
        return folder
    if not (folder / _TEKKEN).is_file():
        raise ConfigError(
            f"tokenizer_mode=mistral reads {_TEKKEN}, and {folder} has none: leave it out", param="tokenizer_mode"
        )
    return folder / _TEKKEN


def check_load_format(asked: str, folder: Path, catalog: Catalog) -> str:
    """Check a load format; returns it. Raises ``ConfigError`` if it is unknown or the folder can't have it."""
    offers = {offer.name: offer for offer in catalog.offers(CheckpointOffer)}
    known = (*_LOAD_FORMATS, *offers)
    if asked not in known:
        raise ConfigError(
            f"load_format {asked} is not one of {', '.join(known)}: save the checkpoint as safetensors",
            param="load_format",
        )
    offer = offers.get(asked)
    if offer is not None and offer.single_files and not offer.recognises(str(folder)):
        raise ConfigError(
            f"load_format {asked}: {folder} is of another format; give a file {offer.single_files} as the model, or "
            "leave load_format out",
            param="load_format",
        )
    return asked


def loader_options(settings: Settings, choices: Choices) -> dict[str, Any]:
    """The options of a format's reader. Raises ``ConfigError`` for options that the format does not have."""
    given = dict(settings["model_loader_extra_config"] or {})
    for name in _READING_FASTER & given.keys():
        choices.note("model_loader_extra_config", name, "has no effect: weights are always read by several threads")
        del given[name]
    known = ("pattern",) if settings["load_format"] == "sharded_state" else ()
    unknown = sorted(given.keys() - set(known))
    if unknown:
        raise ConfigError(
            f"model_loader_extra_config has {', '.join(unknown)}, which load_format {settings['load_format']} does not "
            f"support; it supports {' and '.join(known) or 'no options'}",
            param="model_loader_extra_config",
        )
    return given


def refuse_foreign(folder: Path, load_format: str) -> None:
    """Raises ``ConfigError`` for a folder that only has the weights of another program's model."""
    if load_format == "dummy" or any(folder.glob("*.safetensors")):
        return
    if _is_ctranslate2(folder / _CTRANSLATE2):
        found = f"{_CTRANSLATE2} is a CTranslate2 model"
    elif any(file for pattern in SAVED_BY_TORCH for file in folder.glob(pattern)):
        return
    else:
        named = ((file, name) for pattern, name in _FOREIGN for file in sorted(folder.glob(pattern)))
        file, name = next(named, (None, ""))
        if file is None:
            return
        found = f"{file.relative_to(folder)} is a model for {name}"
    raise ConfigError(
        f"{folder}: {found}, which lsv can't read: give the model's original checkpoint, with config.json and "
        "*.safetensors",
        param="model",
    )


def _is_ctranslate2(file: Path) -> bool:
    """Whether a CTranslate2 file: it begins with a version (uint32) and the name of a specification."""
    try:
        with os.fdopen(open_regular(file, WEIGHTS), "rb") as opened:
            begin = opened.read(_HEADER)
    except OSError:
        return False
    if len(begin) < _HEADER:
        return False
    version, length = struct.unpack_from("<IH", begin)
    name = begin[6 : 6 + length]
    return 0 < version < 100 and len(name) == length and bool(name.rstrip(b"\0").endswith(b"Spec"))
