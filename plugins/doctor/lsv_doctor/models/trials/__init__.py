"""What else a class can do once its text is right: a run for each column of the page.

A run takes the ``Subject`` and answers ``Finding``. A new one is a line of ``TRIALS``; a column without a run is
recorded as not tried. An ``LsvError`` in a run means no, any other error that the column is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lsv.offers import ProcessorOffer
from lsv.request.media import Modality
from lsv_base.errors import LsvError
from lsv_doctor.models.orders import COLUMNS, Cell
from lsv_doctor.models.reasons import in_a_line, in_words, reason_of
from lsv_doctor.models.trials.adapters import try_adapters
from lsv_doctor.models.trials.declaring import try_quantised, try_ranks
from lsv_doctor.models.trials.further import try_further
from lsv_doctor.models.trials.images import try_images
from lsv_doctor.models.trials.subject import Finding, Subject, Unable

__all__ = ["TRIALS", "Finding", "Subject", "Trial", "Unable", "try_all"]

Trial = Callable[[Subject], Finding | None]
"""None where it does not know how to try the class."""
TRIALS: Mapping[str, Trial] = {
    "images": try_images,
    "quantised": try_quantised,
    "ranks": try_ranks,
    "adapters": try_adapters,
    "mtp": try_further,
}
"""By column."""
_INPUTS: Mapping[str, Modality] = {"images": "image", "sound": "audio", "video": "video"}
"""Columns, and the names of transformers for what a class takes."""


def try_all(subject: Subject) -> tuple[dict[str, Cell], dict[str, str]]:
    """A cell for each column, and the reasons for cells that are not ``yes``."""
    cells: dict[str, Cell] = {}
    reasons: dict[str, str] = {}
    for column in COLUMNS:
        cells[column], why = _try(subject, column)
        if why:
            reasons[column] = why.replace(f"{subject.folder}/", "")
    return cells, reasons


def _find_processor(subject: Subject, column: str) -> Finding:
    """No, where lsv has nothing that prepares such input for the class; otherwise that no run has tried it."""
    offered = (
        offer.modalities
        for offer in subject.catalog.offers(ProcessorOffer)
        if subject.config.architecture in offer.architectures
    )
    if any(_INPUTS[column] in modalities for modalities in offered):
        return Finding("")
    return Finding("no", "lsv has no processor for it")


def _try(subject: Subject, column: str) -> Finding:
    if column in _INPUTS and _INPUTS[column] not in subject.inputs:
        return Finding("none")
    try:
        trial = TRIALS.get(column)
        found = None if trial is None else trial(subject)
        return found or (_find_processor(subject, column) if column in _INPUTS else Finding(""))
    except Unable as error:
        return Finding("", in_a_line(str(error)))
    except LsvError as error:
        return Finding("no", reason_of(error))
    except Exception as error:
        return Finding("wrong", in_words(error))
