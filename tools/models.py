"""Which text-generation classes of transformers run, and all architectures that people bring: docs/models.md.

    python tools/models.py                       print how many there are of each state
    python tools/models.py --write               write docs/models.md and the table of classes
    python tools/models.py --write RESULTS       the same with what lsv models --check --results RESULTS has found

With verdicts of all classes in RESULTS, the table also records the release of transformers that is installed.
The table, plugins/doctor/lsv_doctor/models/classes.tsv, has a line for each class that transformers maps a model_type
to for text generation, from text alone or from more. A class that is new in transformers gets a line without a state.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from lsv.plugins import load
from lsv_doctor.models.classes import Class, Kind, Mapped, read_classes, write_classes
from lsv_doctor.models.orders import COLUMNS, WORDS, Verdict
from lsv_doctor.models.recent import Published, read_recent
from lsv_doctor.models.release import PACKAGE, installed_release, read_release
from lsv_doctor.models.results import read_results
from lsv_doctor.models.served import NO_CLASS, Served, Share, list_served

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "models.md"
PLUGINS = ("core", "models")
MAPPINGS: Mapping[Mapped, tuple[str, str]] = {
    "causal": ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
    "seq2seq": ("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"),
    "image-text": ("AutoModelForImageTextToText", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES"),
    "multimodal": ("AutoModelForMultimodalLM", "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES"),
}
"""The class of transformers that reads a mapping, and the mapping's name in its source."""
_INTRODUCTION = """\
# Models

```sh
lsv models NAME              # what this page says of an architecture or a model
lsv models --check NAME      # try a class on this machine
```

The architectures that run here, by the name in config.json's `architectures`. Native ones have a file of their own in
`plugins/models`. Generic ones run transformers' code over lsv's attention, linear layers and KV cache. For all others
the page gives the reason.

Checkpoints that hold towers for media beside a language model (`…ForConditionalGeneration`) are served for text by that
language model, natively where it has a native class. The towers take no memory, the log names them, and requests with
media get an error that says so. `--language-model-only` does the same for models that are served with media. An
architecture that lsv does not know is served as what its `model_type` says.

A check writes every cell. It makes a tiny checkpoint of the class with random weights, saves it as transformers does,
and asks it through the engine in float32: in chunks, with prefix hits, preemptions and mixed batches. The log
probabilities of the whole vocabulary at every position must be within 1e-4 of transformers' own forward pass, and 32
greedy tokens must be the same. A class that takes more than text is asked for text alone, with its towers beside.

| column | yes means |
|---|---|
| text | text equals transformers' as described above |
| images, sound, video | answers to such input equal transformers' |
| quantised | weights are quantised while they are loaded (`--quantization`) |
| ranks | the model is cut over ranks (`--tensor-parallel-size`) |
| adapters | answers through a random LoRA adapter ([adapters.md](adapters.md)) equal those of the merged weights |
| MTP | layers for further tokens draft for it (`mtp` in [speculation.md](speculation.md)), and answers stay the same |

*no* means that lsv refuses it with a message, *wrong* that it differs or crashes, and – that the class has nothing of
the kind. *not tried* means that there was no run. Notes say why, and what of the layers adapters were tried on if not
on all. Families that transformers does not have are not part of the check:
tests of their own hold them to their published definitions. Every dtype of the platform is served except those that a
note excludes.

`tools/models.py` writes this page.
"""
_HEAD = ("architecture", "models", "tasks", "text", *(column.replace("mtp", "MTP") for column in COLUMNS), "notes")


def list_classes(known: Mapping[str, Class]) -> Iterator[Class]:
    """Every class that transformers has for text generation, with what is known of it."""
    from transformers.models.auto import modeling_auto as auto

    found: dict[str, dict[str, list[Mapped]]] = {}
    for mapped, (_, name) in MAPPINGS.items():
        for family, architecture in getattr(auto, name).items():
            found.setdefault(architecture, {}).setdefault(family, []).append(mapped)
    for architecture, families in sorted(found.items(), key=lambda one: one[0].lower()):
        yield _class(architecture, families, known.get(architecture))


def _class(architecture: str, families: Mapping[str, Sequence[Mapped]], before: Class | None) -> Class:
    """A class by the family that is its own: one of text alone, called like it."""
    from lsv_doctor.models.wrappers import wraps

    plain = architecture.lower()
    family = min(families, key=lambda one: (wraps(one), not plain.startswith(_letters(one)), one))
    mappings = tuple(mapped for mapped in MAPPINGS if any(mapped in names for names in families.values()))
    kind: Kind = "wrapper" if wraps(family) else "seq2seq" if _encodes(family, mappings) else "causal"
    if before is None:
        return Class(architecture=architecture, kind=kind, mappings=mappings, family=family)
    return msgspec.structs.replace(before, kind=kind, mappings=mappings, family=family)


def _encodes(family: str, mappings: Sequence[Mapped]) -> bool:
    from transformers import CONFIG_MAPPING

    return "causal" not in mappings and ("seq2seq" in mappings or CONFIG_MAPPING[family].is_encoder_decoder)


def _letters(family: str) -> str:
    return re.sub(r"[^a-z0-9]", "", family.lower())


def with_results(classes: Iterable[Class], results: Mapping[str, Verdict]) -> list[Class]:
    return [one.with_verdict(results[one.architecture]) if one.architecture in results else one for one in classes]


def checked_release(classes: Iterable[Class], results: Mapping[str, Verdict]) -> str:
    """The installed release if ``results`` has a verdict of every class, the recorded one if it has not."""
    return installed_release() if all(one.architecture in results for one in classes) else read_release()


def page(classes: Mapping[str, Class]) -> str:
    """The document."""
    served = list_served(load(PLUGINS).catalog, classes)
    parts = [_INTRODUCTION, shares(classes), recent(read_recent(), served)]
    for title, way in (("Native", "native"), ("Generic", "generic"), ("Not served", "no")):
        members = [one for one in served if one.way == way]
        if members:
            parts.append(f"## {title} ({len(members)})\n\n{_table(members, served=way != 'no')}")
    return "\n".join(parts)


def shares(classes: Mapping[str, Class]) -> str:
    """A line for each mapping: how many of its classes serve text."""
    lines = [f"Checked with {PACKAGE} {read_release()}, each class of transformers' mappings for text generation:", ""]
    for mapped, (reader, _) in MAPPINGS.items():
        members = [one for one in classes.values() if mapped in one.mappings]
        every = count_running(members)
        decoders = count_running([one for one in members if counts_as_decoder(one)])
        said = [f"{every.short} classes serve text{every.part}"]
        if decoders.all:
            said.append(f"{decoders.short}{decoders.part} of those that can be built and whose text model is a decoder")
        rest = Counter(one.state or "without a check" for one in members if one.state != "runs")
        said += (f"{count} {_STATES.get(state, state)}" for state, count in sorted(rest.items()))
        lines.append(f"* `{reader}`: {', '.join(said)}")
    return "\n".join((*lines, ""))


_STATES = {"untried": "that no check can ask for text alone", "crash": "that crash", "wrong": "that are wrong"}


def counts_as_decoder(one: Class) -> bool:
    """Whether a check can ask the class for text alone, and its text model is a decoder; not known before a check."""
    return one.text_model == "decoder" and one.state not in ("", "untried")


def count_running(classes: Sequence[Class]) -> Share:
    return Share(sum(one.state == "runs" for one in classes), len(classes))


def recent(published: Iterable[Published], served: Sequence[Served]) -> str:
    by_name = {one.architecture: one for one in served}
    lines = [f"| {one.family} | {one.architecture} | {_state(one, by_name)} |" for one in published]
    head = "## Families of 2026\n\nText, by the class that config.json of the published checkpoints names:"
    return "\n".join((head, "", "| family | class | text |", "|---|---|---|", *lines, ""))


def _state(one: Published, by_name: Mapping[str, Served]) -> str:
    if one.named != one.architecture and one.architecture not in by_name:
        return f"as {one.named}: {_state(one._replace(architecture=one.named), by_name)}"
    found = by_name.get(one.architecture)
    if found is None:
        return f"not served: {NO_CLASS}"
    if found.way == "no":
        return f"not served: {_cell(found.why)}"
    return f"{found.way}, {'checked' if found.text == 'yes' else 'not tried'}"


def _table(members: Sequence[Served], *, served: bool) -> str:
    if not served:
        lines = [f"| {one.architecture} | {one.models} | {_cell(one.why)} |" for one in members]
        return "\n".join(("| architecture | models | why |", "|---|---|---|", *lines, ""))
    rule = "|---" * len(_HEAD) + "|"
    return "\n".join((f"| {' | '.join(_HEAD)} |", rule, *map(line, members), ""))


def line(one: Served) -> str:
    notes = "; ".join(filter(None, (one.why, *(f"not {name}: {why}" for name, why in one.unstable.items()))))
    cells = (one.text, *(one.cells.get(column, "") for column in COLUMNS))
    shown = (one.architecture, one.models, ", ".join(one.tasks), *(WORDS[cell] for cell in cells), notes)
    return f"| {' | '.join(map(_cell, shown))} |"


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
