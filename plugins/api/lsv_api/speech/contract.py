"""OpenAI's routes for speech."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv_api.contract import Contract, Route
from lsv_api.records import requests, responses
from lsv_api.speech import routes as speech

ROUTES = (
    Route(
        method="POST",
        path="/v1/audio/transcriptions",
        handler=speech.create_transcription,
        summary="Transcribe audio",
        request=requests.SpeechRequest,
        response=responses.Transcription,
        verbose=responses.VerboseTranscription,
        streams=responses.TranscriptEvent,
        form=True,
        transcribes=True,
    ),
    Route(
        method="POST",
        path="/v1/audio/translations",
        handler=speech.create_translation,
        summary="Translate audio into English text",
        request=requests.SpeechRequest,
        response=responses.Transcription,
        verbose=responses.VerboseTranscription,
        streams=responses.TranscriptEvent,
        form=True,
        transcribes=True,
    ),
)


def make(settings: Mapping[str, Any]) -> Contract:
    return Contract(routes=ROUTES)
