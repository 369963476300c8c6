"""The ladder: engines that differ by one layer each, from plain torch to all that the platform has. The first whose
answers differ from the CPU's names what is wrong.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from first_run import rung as rung_program
from first_run.rung import MARK
from lsv.offers import AttentionOffer
from lsv.platform import Platform
from lsv.plugins.catalog import Catalog

TIE = 1e-3
"""Tokens whose log probabilities differ by less may change places: sums are made in another order."""
SECONDS = 180.0
ROUGH_TIE = 5e-2
"""The same for a backend that computes in 16-bit floats alone."""
REFERENCE: Mapping[str, Any] = {"platform": "cpu", "dtype": "float32", "reference_ops": True}


@dataclass(frozen=True)
class Rung:
    """An engine to try; ``adds`` is what it has that the rung below has not."""

    adds: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What came of a rung: ``ok``, or what went wrong in one line, with the end of what was printed."""

    rung: Rung
    verdict: str
    found: Mapping[str, Any] = field(default_factory=dict)
    tail: str = ""

    @property
    def holds(self) -> bool:
        return self.verdict == "ok"


def rungs(platform: Platform, catalog: Catalog, common: Mapping[str, Any]) -> Iterator[Rung]:
    """Of the platform's attention backends the plainest is the last one that needs no library."""
    base = {**common, "platform": platform.name, "dtype": "float32"}
    offers = [catalog.find(AttentionOffer, name) for name in platform.attention]
    there = [offer for offer in offers if not (offer.missing and offer.missing())]
    plain = next((offer.name for offer in reversed(there) if offer.missing is None), offers[-1].name)
    better = [offer for offer in there if offer.name != plain]
    eager = {"enforce_eager": True, "async_scheduling": False}
    yield Rung(f"the device, {plain} attention, every op in torch",
               {**base, **eager, "attention_backend": plain, "reference_ops": True})  # fmt: skip
    yield Rung("kernels for ops", {**base, **eager, "attention_backend": plain})
    yield Rung("graphs or compiled steps", {**base, "async_scheduling": False, "attention_backend": plain})
    yield Rung("steps in flight", {**base, "attention_backend": plain})
    for offer in reversed(better):
        chosen = {**base, "attention_backend": offer.name}
        if offer.dtypes and "float32" not in offer.dtypes:
            chosen["dtype"] = "float16" if "float16" in offer.dtypes else offer.dtypes[0]
        yield Rung(f"{offer.name} attention, eager", {**chosen, **eager})
        yield Rung(f"{offer.name} attention with graphs and steps in flight", chosen)
    if len(platform.devices()) > 1:
        yield Rung("two devices", {**base, "tensor_parallel_size": 2})


def climb(rung: Rung, reference: Mapping[str, Any] | None) -> Outcome:
    """Run a rung in a process of its own, and compare its answers with the reference's."""
    command = [sys.executable, rung_program.__file__, json.dumps(rung.options)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Outcome(rung, f"did not end within {SECONDS:g} s")
    tail = (done.stderr + done.stdout)[-4000:]
    line = next((line for line in done.stdout.splitlines() if line.startswith(MARK)), None)
    if line is None:
        return Outcome(rung, f"ended with {done.returncode} and no answer", tail=tail)
    found = json.loads(line.removeprefix(MARK))
    if "refused" in found:
        return Outcome(rung, f"refused: {found['refused']}", found, tail)
    tie = TIE if rung.options.get("dtype", "float32") == "float32" else ROUGH_TIE
    return Outcome(rung, compare(found, reference, tie) if reference else "ok", found, tail)


def compare(found: Mapping[str, Any], reference: Mapping[str, Any], tie: float = TIE) -> str:
    """``ok`` where all tokens are the reference's, up to a tie; else where the first differs."""
    for number, (own, right, margins) in enumerate(
        zip(found["tokens"], reference["tokens"], reference["margins"], strict=True)
    ):
        parting = next((at for at, (one, two) in enumerate(zip(own, right, strict=True)) if one != two), None)
        if parting is not None and margins[parting] >= tie:
            tokens = f"{own[parting]} instead of {right[parting]}, which is likelier by {margins[parting]:.3g}"
            return f"answer {number} differs from the CPU's at token {parting}: {tokens}"
    return "ok"
