"""What is offered for a misspelt option: slips, and never an option that means something else."""

import pytest

from lsv.settings import Declared, options
from lsv.settings.spelling import misspelt, suggest

KNOWN = Declared(options.CORE).by_key


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("max-modl-len", "max-model-len"), ("max-modle-len", "max-model-len"), ("max-model-length", "max-model-len"),
        ("port", None), ("prot", "port"), ("hots", "host"), ("gpu-memory-utilisation", "gpu-memory-utilization"),
        ("tokenzer", "tokenizer"),
    ],
)  # fmt: skip
def test_slips(given: str, meant: str | None) -> None:
    assert misspelt(given, [name for name in KNOWN if name != given] if meant is None else KNOWN) == meant


@pytest.mark.parametrize("given", ["max-log-size", "ssl-cert-file-reqs", "api-host"])
def test_other_words_are_not_offered(given: str) -> None:
    assert misspelt(given, KNOWN) is None
    assert suggest(given, KNOWN) == ""
