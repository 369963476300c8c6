"""The figures of a trial, each with what it has to be."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from lsv_bench.machine import describe_machine


@dataclass(frozen=True)
class Figure:
    """What was found. ``wanted`` says what it has to be, and ``holds`` whether it is; without ``wanted`` it informs."""

    name: str
    found: str
    wanted: str = ""
    holds: bool = True


def at_most(name: str, found: float, most: float, unit: str = "") -> Figure:
    wanted = "0" if not most else f"≤ {most:g}{unit}"
    return Figure(name, f"{found:.4g}{unit}", wanted, found <= most)


def told(name: str, found: object) -> Figure:
    return Figure(name, str(found))


def print_heading(options: argparse.Namespace) -> None:
    """What a trial is run with; the same seed repeats it as far as the clock allows."""
    machine, out = describe_machine(), options.out
    print(f"seed {options.seed}, {options.minutes:g} min, {machine.cpu}, {machine.cores} cores, {out}/", flush=True)


def print_table(figures: Sequence[Figure]) -> bool:
    """A table in Markdown; whether all figures hold."""
    rows = [("figure", "found", "wanted", ""), *((f.name, f.found, f.wanted, _mark(f)) for f in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for number, row in enumerate(rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    sys.stdout.flush()
    return all(figure.holds for figure in figures)


def _mark(figure: Figure) -> str:
    return "" if not figure.wanted else "ok" if figure.holds else "FAILS"
