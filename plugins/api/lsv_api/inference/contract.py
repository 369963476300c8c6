"""Routes that show prompts, take token ids and continue texts, as vLLM and llama.cpp call them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv_api.contract import Contract, Route
from lsv_api.inference import continuing, generating, records, rendering
from lsv_api.records.requests import ChatRequest

ROUTES = (
    Route(
        method="POST",
        path="/v1/chat/completions/render",
        handler=rendering.render_chat,
        summary="Show a conversation as the model is shown it, as text and token ids",
        request=ChatRequest,
        response=records.RenderedChat,
    ),
    Route(
        method="POST",
        path="/apply-template",
        handler=rendering.apply_template,
        summary="The same as llama.cpp names it",
        request=ChatRequest,
        response=records.AppliedTemplate,
    ),
    Route(
        method="POST",
        path="/inference/v1/generate",
        handler=generating.generate,
        summary="Continue token ids by token ids",
        request=records.InferenceRequest,
        response=records.InferenceResponse,
        streams=records.InferenceResponse,
    ),
    Route(
        method="POST",
        path="/generate",
        handler=continuing.continue_text,
        summary="Continue a text, as vLLM's simple server does",
        request=records.TextRequest,
        response=records.TextResponse,
        streams=records.TextResponse,
        stream_type=continuing.OBJECTS.content_type,
    ),
)


def make(settings: Mapping[str, Any]) -> Contract:
    return Contract(routes=ROUTES)
