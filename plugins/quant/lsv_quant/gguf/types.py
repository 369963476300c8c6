"""The types of tensors, and the form in which their codes are held. Imports no torch.

A type of up to 4 bits is held in 4 bits; codes of 5 and 6 bits are held as bytes. Parts that are computed as one layer
share a form.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

NAMES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0", 42: "Q2_0",
}  # fmt: skip


class Form(NamedTuple):
    """How codes are held, see ``Codebook``. Codes of 4 bits choose from a ``table`` of that name, or else count from 0
    if there are offsets, and from -8 if there are none.
    """

    bits: int
    group: int
    offsets: bool
    table: str = ""


class BlockType(NamedTuple):
    """``weights`` consecutive weights of a row are stored in ``size`` bytes; plain numbers have no form."""

    weights: int
    size: int
    form: Form | None = None


TYPES = {
    "F32": BlockType(1, 4),
    "F16": BlockType(1, 2),
    "BF16": BlockType(1, 2),
    "Q4_0": BlockType(32, 18, Form(4, 32, False)),
    "Q4_1": BlockType(32, 20, Form(4, 32, True)),
    "Q5_0": BlockType(32, 22, Form(8, 32, False)),
    "Q5_1": BlockType(32, 24, Form(8, 32, True)),
    "Q8_0": BlockType(32, 34, Form(8, 32, False)),
    "Q2_K": BlockType(256, 84, Form(4, 16, True)),
    "Q3_K": BlockType(256, 110, Form(4, 16, False)),
    "Q4_K": BlockType(256, 144, Form(4, 32, True)),
    "Q5_K": BlockType(256, 176, Form(8, 32, True)),
    "Q6_K": BlockType(256, 210, Form(8, 16, False)),
    "IQ4_NL": BlockType(32, 18, Form(4, 32, False, "IQ4_NL")),
    "IQ4_XS": BlockType(256, 136, Form(4, 32, False, "IQ4_NL")),
    "MXFP4": BlockType(32, 17, Form(4, 32, False, "MXFP4")),
}
"""The names of the types that can be read."""


def joint_form(forms: Iterable[Form | None]) -> Form | None:
    """The form that holds all of them exactly, None if some are plain numbers."""
    known = set(forms)
    if len(known) == 1:
        return known.pop()
    coded = [form for form in known if form is not None]
    if len(coded) < len(known):
        return None
    return Form(8, min(form.group for form in coded), any(form.offsets for form in coded))
