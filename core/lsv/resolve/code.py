"""What a checkpoint's own code is for, and what serves in its place."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lsv.config import Choices
from lsv.offers import ModelOffer
from lsv.plugins.catalog import Catalog
from lsv.resolve.files import code_folder, remote_code
from lsv.resolve.locate import read_config
from lsv.settings import Settings
from lsv_base.errors import LsvError
from lsv_base.remote_code.messages import MakeConfig
from lsv_base.remote_code.process import CodeProcess
from lsv_base.remote_code.references import check_code, find_code

log = logging.getLogger(__name__)

_BOOKKEEPING = ("_name_or_path", "auto_map", "transformers_version")


def made_by_code(folder: Path, settings: Settings, catalog: Catalog, choices: Choices) -> dict[str, Any]:
    """The keys that a checkpoint's own class of config sets or changes, where it has one and it is trusted; null for
    those that it has read and does not keep.

    Where the code fails, config.json of a native model is read without it, as without trust; of others this raises
    ``CheckpointError``, or ``RequestFailed`` where the code costs its process its life.
    """
    given = read_config(folder, {})
    code, mode = find_code(given, "AutoConfig"), remote_code(settings)
    if code is None:
        return {}
    if mode is None:
        choices.note("config", "config.json", f"is read as it is: {code} is run with --trust-remote-code only")
        return {}
    modules = code_folder(settings, folder)
    own = "the checkpoint's own code" if modules == folder else f"its code of revision {settings['code_revision']}"
    try:
        made = _run(CodeProcess(str(folder), check_code(code, modules), mode, str(modules)), given)
    except LsvError as failure:
        if not _is_native(given, catalog):
            raise
        log.warning("%s: lsv reads config.json without its code %s: %s", folder, code, failure.message)
        return {}
    choices.note("config", code, f"{own}, run in a confined process (--trust-remote-code)")
    names = (given.keys() | made.keys()) - set(_BOOKKEEPING)
    return {name: made.get(name) for name in sorted(names) if made.get(name) != given.get(name)}


def _run(process: CodeProcess, given: Mapping[str, Any]) -> dict[str, Any]:
    try:
        made: dict[str, Any] = json.loads(process.ask(MakeConfig(json.dumps(given).encode())).made)
    finally:
        process.close()
    return made


def _is_native(checkpoint: Mapping[str, Any], catalog: Catalog) -> bool:
    named = checkpoint.get("architectures")
    names = set(named) if isinstance(named, list) else set()
    return any(not offer.adapts and names & {*offer.architectures} for offer in catalog.offers(ModelOffer))


def note_model(
    checkpoint: Mapping[str, Any], architecture: str, model: ModelOffer, choices: Choices, asked: str = "auto"
) -> None:
    """Say which model serves an architecture, where there is anything to know of it or it is not a native one."""
    code = find_code(checkpoint, "AutoModelForCausalLM", "AutoModel", "AutoModelForSeq2SeqLM", "AutoModelForVision2Seq")
    served = "the generic transformers adapter runs it" if model.adapts else f"the native {model.name} runs it"
    served = "; ".join(filter(None, (served, model.note)))
    if code is not None:
        choices.note("architecture", architecture, f"a model's own code ({code}) is never run: {served}")
    elif asked != "auto":
        choices.note("architecture", architecture, f"asked for model_impl={asked}: {served}")
    elif model.adapts:
        choices.note("architecture", architecture, f"no native model offers it: {served}")
    elif model.note:
        choices.note("architecture", architecture, served)
