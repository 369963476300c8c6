"""What drafters that go on with a model's states propose."""

from __future__ import annotations

from typing import Any

import pytest

from lsv_drafters.states.drafter import StatesDrafter


@pytest.fixture
def drafted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], list[int]]]:
    """Sequences, and what was drafted for them."""
    found: list[tuple[list[int], list[int]]] = []
    plain = StatesDrafter.propose

    def propose(self: StatesDrafter, sequences: Any) -> Any:
        drafts = plain(self, sequences)
        found.extend((one.ids.tolist(), list(made)) for one, made in zip(sequences, drafts, strict=True))
        return drafts

    monkeypatch.setattr(StatesDrafter, "propose", propose)
    return found
