"""What transformers knows of families by their model_type: plugins/models/lsv_models/families/transformers.json.

    python tools/families.py             say whether the file is what the installed transformers has
    python tools/families.py --write     write it

lsv reads the file where it chooses a model, before torch is imported, which takes longer than all else it does there.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from lsv.offers import ModelOffer
from lsv.plugins import load
from lsv.resolve.architecture.families import Families, Wrapper
from lsv_doctor.models.release import installed_release
from lsv_models.families import FILE, Table
from lsv_models.families.aliases import HALVES

PLUGINS = ("core", "models")


def read_installed() -> Table:
    """The table of the installed transformers."""
    architectures, wrappers = _read_architectures(), dict(_list_wrappers())
    native = {name for offer in load(PLUGINS).catalog.offers(ModelOffer) for name in offer.architectures}
    served = {kind for kind, name in {**architectures, **HALVES}.items() if name in native}
    halves = sorted({wrapper.half for wrapper in wrappers.values()} & served)
    defaults = {kind: _defaults(kind) for kind in halves}
    made = {
        kind: msgspec.structs.replace(wrapper, defaults=_differing(kind, wrapper.half))
        for kind, wrapper in wrappers.items()
        if wrapper.half in defaults
    }
    return Table(installed_release(), Families(architectures, {**wrappers, **made}, defaults))


def _as_json(value: Any) -> Any:
    """As transformers writes it to config.json: numbers that JSON lacks are objects."""
    if isinstance(value, Mapping):
        return {key: _as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"__float__": {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")}
    return value


def _read_architectures() -> dict[str, str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES

    return {kind: name for kind, name in sorted(NAMES.items()) if isinstance(name, str)}


def _list_wrappers() -> Iterator[tuple[str, Wrapper]]:
    """Every family that takes more than text, if its config.json has the language model in an object of its own."""
    from transformers.models.auto import modeling_auto as auto

    names = {**auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, **auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES}
    for kind, architecture in sorted(names.items()):
        config = _make(kind)
        half = getattr(config, "text_config", None)
        if isinstance(architecture, str) and half is not None and not getattr(config, "is_encoder_decoder", False):
            yield kind, Wrapper(architecture, str(half.model_type), getattr(config, "tie_word_embeddings", None))


def _make(kind: str, **given: Any) -> Any:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[kind](**given)


def _defaults(kind: str) -> dict[str, Any]:
    """What the config.json of a family leaves out, a rope rule among it.

    Keys that follow from others, as the size of a head does, and keys with several names are not in it.
    """
    from transformers import CONFIG_MAPPING, PreTrainedConfig

    common = {field.name for field in dataclasses.fields(PreTrainedConfig)} - {"tie_word_embeddings"}
    spellings = CONFIG_MAPPING[kind].attribute_map
    common |= spellings.keys() | set(spellings.values())
    fields = [field for field in dataclasses.fields(CONFIG_MAPPING[kind]) if field.name not in common]
    given = {field.name: _default(field) for field in fields}
    rope = _make(kind).to_dict().get("rope_parameters")
    return {key: _as_json(value) for key, value in {**given, "rope_parameters": rope}.items() if value is not None}


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _differing(kind: str, half: str) -> dict[str, Any]:
    """What a wrapper's language model has by default that its family has not."""
    from huggingface_hub.errors import StrictDataclassError

    try:
        found = _make(kind, text_config={"model_type": half}).text_config.to_dict()
    except StrictDataclassError:  # its parts have to agree in size, so that no config.json leaves these out
        return {}
    usual = _make(half).to_dict()
    return {key: _as_json(value) for key, value in found.items() if value is not None and usual.get(key) != value}


def main() -> int:
    table = read_installed()
    written = msgspec.json.format(msgspec.json.encode(table, order="sorted"), indent=1) + b"\n"
    if "--write" in sys.argv[1:]:
        FILE.write_bytes(written)
    same = FILE.read_bytes() == written
    known = table.families
    counts = f"{len(known.architectures)} architectures, {len(known.wrappers)} with towers"
    print(f"transformers {table.release}: {counts}; the file is {'this' if same else 'another: add --write'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
