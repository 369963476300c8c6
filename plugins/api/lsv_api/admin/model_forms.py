"""The served models as Anthropic's clients list them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from lsv_api.http.context import Exchange
from lsv_api.records.models import MessagesModel, MessagesModelList
from lsv_api.records.responses import ModelCard


def asks_in_this_form(exchange: Exchange) -> bool:
    """Whether a request for ``/v1/models``, which is OpenAI's route as well, comes from a client of Anthropic's."""
    return "anthropic-version" in exchange.request.headers


def list_cards(cards: Sequence[ModelCard]) -> MessagesModelList:
    return MessagesModelList(
        data=[write_card(card) for card in cards],
        first_id=cards[0].id if cards else None,
        last_id=cards[-1].id if cards else None,
    )


def write_card(card: ModelCard) -> MessagesModel:
    return MessagesModel(
        id=card.id,
        display_name=card.id,
        created_at=datetime.fromtimestamp(card.created, UTC),
        max_input_tokens=card.max_model_len,
        max_tokens=card.max_model_len,
    )
