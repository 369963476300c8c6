"""What an engine runs, part by part, under the names that vLLM's users read it by."""

from __future__ import annotations

import msgspec

from lsv.config import EngineConfig, Fit


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The model."""

    model: str
    tokenizer: str
    served_model_name: str
    dtype: str
    quantization: str | None
    max_model_len: int
    """Tokens of prompt and answer; what fits the device, once that is known."""
    max_logprobs: int
    seed: int
    vocab_size: int | None
    """None until the model is loaded."""

    @classmethod
    def of(cls, config: EngineConfig, fit: Fit | None) -> ModelConfig:
        return cls(
            model=config.model,
            tokenizer=config.tokenizer,
            served_model_name=config.served_names[0],
            dtype=config.dtype,
            quantization=config.quantization,
            max_model_len=config.max_model_len if fit is None else fit.max_model_len,
            max_logprobs=config.max_logprobs,
            seed=config.seed,
            vocab_size=None if fit is None else fit.vocab_size,
        )

    def get_vocab_size(self) -> int | None:
        return self.vocab_size


class ParallelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the model is spread over devices."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int = 1
    world_size: int
    """Ranks of one replica."""

    @classmethod
    def of(cls, config: EngineConfig) -> ParallelConfig:
        ranks = config.topology
        return cls(
            tensor_parallel_size=ranks.tensor,
            pipeline_parallel_size=ranks.pipeline,
            data_parallel_size=ranks.data,
            world_size=ranks.ranks,
        )


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What runs at a time."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    chunked_prefill_enabled: bool
    policy: str

    @classmethod
    def of(cls, config: EngineConfig) -> SchedulerConfig:
        return cls(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=config.max_model_len,
            chunked_prefill_enabled=config.chunked_prefill,
            policy=config.policy,
        )


class DecodingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How answers are kept to schemas and grammars."""

    guided_decoding_backend: str | None = None
