"""Served models in Anthropic's form."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec


class MessagesModel(msgspec.Struct, kw_only=True, tag="model"):
    """A served model. Both bounds are the context, which prompt and answer share."""

    id: str
    display_name: str
    created_at: datetime
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int
    max_tokens: int


class MessagesModelList(msgspec.Struct, kw_only=True):
    """All models in one page."""

    data: list[MessagesModel]
    first_id: str | None
    last_id: str | None
    has_more: bool = False
