"""Bodies of the routes that say how the server is configured."""

from __future__ import annotations

import msgspec


class ServerLoad(msgspec.Struct, kw_only=True):
    """``server_load``: requests that this process is answering now."""

    server_load: int


class EngineInfo(msgspec.Struct, kw_only=True):
    """How one model is served. Nothing here is a path, a key or an address."""

    model: str
    fingerprint: str
    architecture: str
    tasks: list[str]
    platform: str
    attention: str
    dtype: str
    quantization: str | None
    kv_dtype: str
    block_size: int
    num_blocks: int | None
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_queue: int
    max_logprobs: int
    prefix_caching: bool
    chunked_prefill: bool
    policy: str
    executor: str
    tensor_parallel: int
    pipeline_parallel: int
    replicas: int
    drafter: str | None
    grammars: str | None
    sleep_mode: bool


class ServerInfo(msgspec.Struct, kw_only=True):
    version: str
    models: list[EngineInfo]


class TokenizerInfo(msgspec.Struct, kw_only=True):
    """``eos_token_ids`` end an answer. ``chat_template`` is null where there is none."""

    model: str
    vocab_size: int
    model_max_length: int
    special_tokens: dict[str, str]
    bos_token: str | None
    eos_token: str | None
    bos_token_id: int | None
    eos_token_ids: list[int]
    chat_template: str | None
