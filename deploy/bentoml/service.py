"""A service of BentoML around a server: ``bentoml serve`` or ``bentoml deploy``, in this folder.

BentoML starts the server, watches it, and hands requests on to its OpenAI-compatible API.
"""

from __future__ import annotations

import bentoml

_PORT = 8000


@bentoml.service(
    name="lsv",
    image=bentoml.images.Image(python_version="3.12").system_packages("g++").python_packages("lsv"),
    envs=[{"name": "LSV_MODEL", "value": "meta-llama/Llama-3.1-8B-Instruct"}, {"name": "HF_TOKEN"}],
    resources={"gpu": 1},
    traffic={"timeout": 300},
    endpoints={"livez": "/live", "readyz": "/ready"},
    labels={"openai_endpoint": "/v1"},
)
class Lsv:
    """Variables of lsv (``LSV_TENSOR_PARALLEL_SIZE`` …) and words behind ``serve`` say how it runs."""

    def __command__(self) -> list[str]:
        return ["lsv", "serve", "--port", str(_PORT)]
