"""Which text-generation classes of transformers run, and all architectures that people bring: docs/models.md.

    python tools/models.py                       print how many there are of each state
    python tools/models.py --write               write docs/models.md and the table of classes
    python tools/models.py --write RESULTS       the same with what lsv models --check --results RESULTS has found

With verdicts of all classes in RESULTS, the table also records the release of transformers that is installed.
The table, plugins/doctor/lsv_doctor/models/classes.tsv, has a line for each class that transformers maps a model_type
to for text generation. A class that is new in transformers gets a line nobody has checked yet.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from lsv.plugins import load
from lsv_doctor.models.classes import Class, Kind, read_classes, write_classes
from lsv_doctor.models.orders import Verdict
from lsv_doctor.models.release import PACKAGE, installed_release, read_release
from lsv_doctor.models.results import read_results
from lsv_doctor.models.served import Served, list_served, share

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "models.md"
PLUGINS = ("core", "models")
_OTHER_INPUT = {"text_config", "vision_config", "audio_config", "audio_encoder_config", "audio_encoder", "vq_config"}
"""Parts of a configuration that stand for more than text, or for another model inside."""
_MEDIA = "it takes more than text, or stands around another model"
_INTRODUCTION = """\
# Models

The architectures that run here, by the name in config.json's `architectures`. Native ones have a file of their own in
`plugins/models`, generic ones run transformers' code over lsv's attention, linear layers and KV cache; of all others
the reason is told. `lsv models NAME` shows the same, and `lsv models --check NAME` tries one.

How a class of transformers is checked: a tiny checkpoint with random weights in the family's own form goes through the
engine in float32, in chunks, with prefix hits, preemptions and mixed batches. The log probabilities of the whole
vocabulary at every position must be within 1e-4 of transformers' own forward pass, and 32 greedy tokens the same.
Families that transformers does not have are held by tests of their own, against their published definitions.

* *quantised*: weights are quantised while they are loaded (`--quantization`).
* *parallel*: it is cut over ranks (`--tensor-parallel-size`).
* Adapters (LoRA) are served for decoders, native and generic, see [adapters.md](adapters.md).
* Every dtype of the platform is taken but those that a note refuses.

`tools/models.py` writes this page.
"""


def list_classes(known: Mapping[str, Class]) -> Iterator[Class]:
    """Every class that transformers has for text generation, with what is known of it."""
    from transformers.models.auto import modeling_auto as auto

    kinds: tuple[tuple[Kind, Mapping[str, str]], ...] = (
        ("causal", auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        ("seq2seq", auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
    )
    found: dict[str, tuple[Kind, list[str]]] = {}
    for kind, names in kinds:
        for family, architecture in names.items():
            found.setdefault(architecture, (kind, []))[1].append(family)
    own = {family: architecture for architecture, (_, families) in found.items() for family in families}
    for architecture, (kind, families) in sorted(found.items(), key=lambda one: one[0].lower()):
        yield _class(architecture, kind, families, own, known)


def _class(
    architecture: str, kind: Kind, families: Sequence[str], own: Mapping[str, str], known: Mapping[str, Class]
) -> Class:
    """A class by the family that is its own: one of text alone, called like it."""
    plain = architecture.lower()
    family = min(families, key=lambda one: (_inner(one) is not None, not plain.startswith(_letters(one)), one))
    made = Class(architecture=architecture, kind=kind, family=family)
    if (text := _inner(family)) is not None:
        half = f": its text half is {own[text]}" if text in own else ""
        return msgspec.structs.replace(made, state="media", detail=_MEDIA + half)
    before = known.get(architecture)
    return msgspec.structs.replace(before, kind=kind, family=family) if before else made


def _letters(family: str) -> str:
    return re.sub(r"[^a-z0-9]", "", family.lower())


def _inner(family: str) -> str | None:
    """The ``model_type`` of the text half of a family that takes more; empty where it names none, None for text."""
    from transformers import CONFIG_MAPPING

    parts = CONFIG_MAPPING[family].sub_configs
    if not _OTHER_INPUT & set(parts):
        return None
    return str(getattr(parts.get("text_config"), "model_type", ""))


def with_results(classes: Iterable[Class], results: Mapping[str, Verdict]) -> list[Class]:
    return [
        one.with_verdict(results[one.architecture]) if one.architecture in results and one.state != "media" else one
        for one in classes
    ]


def checked_release(classes: Iterable[Class], results: Mapping[str, Verdict]) -> str:
    """The installed release if ``results`` has a verdict of every class, the recorded one if it has not."""
    whole = all(one.architecture in results for one in classes if one.state != "media")
    return installed_release() if whole else read_release()


def page(classes: Mapping[str, Class]) -> str:
    """The document."""
    served = list_served(load(PLUGINS).catalog, classes)
    parts = [
        _INTRODUCTION,
        f"{share(served)}; {_by_kind(served, classes)}. They were checked with {PACKAGE} {read_release()}.\n",
    ]
    for title, way in (("Native", "native"), ("Generic", "generic"), ("Not served", "no")):
        members = [one for one in served if one.way == way]
        if members:
            parts.append(f"## {title} ({len(members)})\n\n{_table(members, served=way != 'no')}")
    return "\n".join(parts)


def _by_kind(served: Sequence[Served], classes: Mapping[str, Class]) -> str:
    kinds = (("decoder-only", "causal"), ("encoder-decoder", "seq2seq"))
    said = []
    for title, kind in kinds:
        names = {one.architecture for one in classes.values() if one.kind == kind}
        running, count = share([one for one in served if one.architecture in names])
        said.append(f"{running} of {count} {title}")
    return ", ".join(said)


def _table(members: Sequence[Served], *, served: bool) -> str:
    if not served:
        lines = [f"| {one.architecture} | {one.models} | {_cell(one.why)} |" for one in members]
        return "\n".join(("| architecture | models | why |", "|---|---|---|", *lines, ""))
    head = "| architecture | models | tasks | input | quantised | parallel | notes |"
    return "\n".join((head, "|---|---|---|---|---|---|---|", *map(_line, members), ""))


def _line(one: Served) -> str:
    notes = "; ".join(filter(None, (one.why, *(f"not {name}: {why}" for name, why in one.unstable.items()))))
    cells = (one.architecture, one.models, ", ".join(one.tasks), ", ".join(one.modalities), _yes(one.quantised),
             _yes(one.parallel), notes)  # fmt: skip
    return f"| {' | '.join(map(_cell, cells))} |"


def _yes(value: bool | None) -> str:
    return {True: "yes", False: "no", None: ""}[value]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    given = [one for one in sys.argv[1:] if one != "--write"]
    if "--write" in sys.argv[1:]:
        results = read_results(Path(given[0])) if given else {}
        classes = with_results(list_classes(read_classes()), results)
        write_classes(classes, checked_release(classes, results))
        DOCUMENT.write_text(page(read_classes()), encoding="utf-8")
    for state, count in Counter(one.state or "unchecked" for one in read_classes().values()).most_common():
        print(f"{count:5} {state}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
