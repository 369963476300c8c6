"""lsv: LLM inference and serving where every platform, kernel, quantiser and model is a plugin.

The public names below are imported when they are first used, so ``import lsv`` costs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lsv.hooks import hookimpl
from lsv_base.version import __version__ as __version__

if TYPE_CHECKING:
    from lsv.request.adapter import LoRARequest as LoRARequest
    from lsv.request.params import PoolingParams as PoolingParams
    from lsv.request.params import SamplingParams as SamplingParams
    from lsv.request.repetition import RepetitionDetectionParams as RepetitionDetectionParams
    from lsv.request.structured import GuidedDecodingParams as GuidedDecodingParams
    from lsv.request.structured import StructuredOutputsParams as StructuredOutputsParams
    from lsv.text.prompts import ExplicitEncoderDecoderPrompt as ExplicitEncoderDecoderPrompt
    from lsv.text.prompts import PromptInputs as PromptInputs
    from lsv.text.prompts import TextPrompt as TextPrompt
    from lsv.text.prompts import TokensPrompt as TokensPrompt
    from lsv.text.prompts import zip_enc_dec_prompts as zip_enc_dec_prompts
    from lsv_base.errors import LsvError as LsvError
    from lsv_offline.async_llm_engine import AsyncLLMEngine as AsyncLLMEngine
    from lsv_offline.beam_search import BeamSearchParams as BeamSearchParams
    from lsv_offline.engine_args import AsyncEngineArgs as AsyncEngineArgs
    from lsv_offline.engine_args import EngineArgs as EngineArgs
    from lsv_offline.engine_args import FlexibleArgumentParser as FlexibleArgumentParser
    from lsv_offline.llm import LLM as LLM
    from lsv_offline.llm import CompletionOutput as CompletionOutput
    from lsv_offline.llm import LLMEngine as LLMEngine
    from lsv_offline.llm import RequestOutput as RequestOutput

_HOMES = {
    "AsyncEngineArgs": "lsv_offline.engine_args",
    "AsyncLLMEngine": "lsv_offline.async_llm_engine",
    "BeamSearchParams": "lsv_offline.beam_search",
    "EngineArgs": "lsv_offline.engine_args",
    "FlexibleArgumentParser": "lsv_offline.engine_args",
    "LLM": "lsv_offline.llm",
    "LoRARequest": "lsv.request.adapter",
    "LLMEngine": "lsv_offline.llm",
    "CompletionOutput": "lsv_offline.llm",
    "RequestOutput": "lsv_offline.llm",
    "LsvError": "lsv_base.errors",
    "PoolingParams": "lsv.request.params",
    "SamplingParams": "lsv.request.params",
    "GuidedDecodingParams": "lsv.request.structured",
    "RepetitionDetectionParams": "lsv.request.repetition",
    "StructuredOutputsParams": "lsv.request.structured",
    "ExplicitEncoderDecoderPrompt": "lsv.text.prompts",
    "PromptInputs": "lsv.text.prompts",
    "TextPrompt": "lsv.text.prompts",
    "TokensPrompt": "lsv.text.prompts",
    "zip_enc_dec_prompts": "lsv.text.prompts",
}

__all__ = ["__version__", "hookimpl", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lsv' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
