"""Anthropic's routes: conversations, and what they take."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from lsv_api.contract import Contract, Route
from lsv_api.messages.errors import write_error
from lsv_api.messages.records import (
    MessagesAnswer,
    MessagesCount,
    MessagesCountRequest,
    MessagesError,
    MessagesEvent,
    MessagesRequest,
)
from lsv_api.messages.routes import Messages
from lsv_api.messages.signatures import SIGNING_KEY, Signer


def make(settings: Mapping[str, Any]) -> Contract:
    handlers = Messages(Signer(settings.get(SIGNING_KEY) or secrets.token_hex(32)))
    return Contract(
        routes=(
            Route(
                method="POST",
                path="/v1/messages",
                handler=handlers.create,
                summary="Answer a conversation of Anthropic's form",
                request=MessagesRequest,
                response=MessagesAnswer,
                streams=MessagesEvent,
                errors=write_error,
                error=MessagesError,
            ),
            Route(
                method="POST",
                path="/v1/messages/count_tokens",
                handler=handlers.count_tokens,
                summary="Count the tokens of a conversation of Anthropic's form",
                request=MessagesCountRequest,
                response=MessagesCount,
                errors=write_error,
                error=MessagesError,
            ),
        )
    )
