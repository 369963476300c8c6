"""When an answer counts as one that only repeats itself."""

from __future__ import annotations

import msgspec

from lsv_base.errors import BadRequest

MAX_PATTERN = 2048
"""Most tokens of a pattern that is looked for: a token may have to be compared with as many."""

_FIELD = "repetition_detection"


class RepetitionDetectionParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An answer ends when its last tokens are a pattern that stands ``min_count`` times in a row.

    Checked on construction: raises ``BadRequest``. Source of the fields: vLLM, vllm/sampling_params.py.
    """

    max_pattern_size: int = 0
    """Most tokens of a pattern; 0 looks for none."""
    min_pattern_size: int = 0
    """Fewest tokens of a pattern; 0 is 1."""
    min_count: int = 0
    """How often it stands in a row: at least twice."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_pattern_size <= self.max_pattern_size <= MAX_PATTERN:
            raise BadRequest(
                f"{_FIELD} takes 0 <= min_pattern_size <= max_pattern_size <= {MAX_PATTERN}, got "
                f"{self.min_pattern_size} and {self.max_pattern_size}",
                param=_FIELD,
            )
        if self.max_pattern_size and not 2 <= self.min_count <= 1 << 31:
            raise BadRequest(f"{_FIELD}: min_count must be at least 2, got {self.min_count}", param=_FIELD)


def read_repetition(given: object) -> RepetitionDetectionParams | None:
    """What was given, which may be a dictionary; None where nothing is looked for. Raises ``BadRequest``."""
    if given is None:
        return None
    try:
        found = msgspec.convert(given, RepetitionDetectionParams)
    except msgspec.ValidationError as cause:
        raise BadRequest(f"{_FIELD}: {cause}", param=_FIELD) from None
    return found if found.max_pattern_size else None
