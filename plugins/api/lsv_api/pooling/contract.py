"""Routes for vectors, labels and scores beside OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv_api.contract import Contract, Route
from lsv_api.pooling import routes as pooled
from lsv_api.pooling import scoring
from lsv_api.records import pooling

ROUTES = (
    Route(
        method="POST",
        path="/pooling",
        handler=pooled.pool,
        summary="What the model makes of every token of a text",
        request=pooling.PoolingRequest,
        response=pooling.PoolingResponse,
    ),
    Route(
        method="POST",
        path="/classify",
        handler=pooled.classify,
        summary="Label texts",
        request=pooling.ClassifyRequest,
        response=pooling.ClassifyResponse,
    ),
    *(
        Route(
            method="POST",
            path=path,
            handler=scoring.score,
            summary="Score how well pairs of texts go together",
            request=pooling.ScoreRequest,
            response=pooling.ScoreResponse,
        )
        for path in ("/v1/score", "/score")
    ),
    *(
        Route(
            method="POST",
            path=path,
            handler=scoring.rerank,
            summary="Order documents by how well they answer a query",
            request=pooling.RerankRequest,
            response=pooling.RerankResponse,
        )
        for path in ("/v1/rerank", "/v2/rerank", "/rerank")
    ),
)


def make(settings: Mapping[str, Any]) -> Contract:
    return Contract(routes=ROUTES)
