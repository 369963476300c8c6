"""The modules of vLLM that are here, and where lsv has what their names stand for."""

from __future__ import annotations

from collections.abc import Mapping

from lsv_offline.vllm_names import processors

_PROMPTS = {
    "PromptType": "lsv.text.prompts:PromptInputs",
    **{
        name: f"lsv.text.prompts:{name}"
        for name in (
            "ExplicitEncoderDecoderPrompt",
            "PromptInputs",
            "TextPrompt",
            "TokensPrompt",
            "zip_enc_dec_prompts",
        )
    },
}
_OUTPUTS = {
    name: f"lsv.request.outputs:{name}"
    for name in (
        "ClassificationOutput",
        "ClassificationRequestOutput",
        "CompletionOutput",
        "EmbeddingOutput",
        "EmbeddingRequestOutput",
        "PoolingOutput",
        "PoolingRequestOutput",
        "RequestOutput",
        "ScoringOutput",
        "ScoringRequestOutput",
    )
}
_ARGUMENTS = {name: f"lsv_offline.engine_args:{name}" for name in ("AsyncEngineArgs", "EngineArgs")}
_PARSER = {"FlexibleArgumentParser": "lsv_offline.engine_args:FlexibleArgumentParser"}
_POOLING = {"PoolingParams": "lsv.request.params:PoolingParams"}
_LLM = {"LLM": "lsv_offline.llm:LLM"}
_ENGINE = {"LLMEngine": "lsv_offline.llm:LLMEngine"}
_ASYNC = "lsv_offline.async_llm_engine:AsyncLLMEngine"
_LOGPROB = {"Logprob": "lsv.request.outputs:Logprob"}
_NETWORK = {name: f"vllm._network:{name}" for name in ("get_ip", "get_open_port")}
_MEMORY = {
    name: f"vllm._memory:{name}"
    for name in ("cleanup_dist_env_and_memory", "destroy_distributed_environment", "destroy_model_parallel")
}

_OWN: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        **_LLM,
        **_ENGINE,
        "AsyncLLMEngine": _ASYNC,
        **_ARGUMENTS,
        **_OUTPUTS,
        **_POOLING,
        **{name: _PROMPTS[name] for name in ("PromptInputs", "PromptType", "TextPrompt", "TokensPrompt")},
    },
    "vllm.assets.audio": {"AudioAsset": "lsv_multimodal.assets:AudioAsset"},
    "vllm.assets.image": {"ImageAsset": "lsv_multimodal.assets:ImageAsset"},
    "vllm.assets.video": {"VideoAsset": "lsv_multimodal.assets:VideoAsset"},
    "vllm.distributed": _MEMORY,
    "vllm.distributed.parallel_state": _MEMORY,
    "vllm.distributed.weight_transfer.nccl_engine": {
        name: f"vllm._weight_transfer:{name}" for name in ("NCCLTrainerSendWeightsArgs", "NCCLWeightTransferEngine")
    },
    "vllm.engine.arg_utils": _ARGUMENTS,
    "vllm.engine.async_llm_engine": {"AsyncLLMEngine": _ASYNC},
    "vllm.engine.llm_engine": _ENGINE,
    "vllm.entrypoints.chat_utils": {"resolve_hf_chat_template": "vllm._tokenizers:resolve_chat_template"},
    "vllm.entrypoints.llm": _LLM,
    "vllm.inputs": _PROMPTS,
    "vllm.inputs.data": _PROMPTS,
    "vllm.logprobs": _LOGPROB,
    "vllm.lora.request": {"LoRARequest": "lsv.request.adapter:LoRARequest"},
    "vllm.outputs": _OUTPUTS,
    "vllm.pooling_params": _POOLING,
    "vllm.renderers.hf": {"resolve_chat_template": "vllm._tokenizers:resolve_chat_template"},
    "vllm.sampling_params": {
        "BeamSearchParams": "lsv_offline.beam_search:BeamSearchParams",
        "GuidedDecodingParams": "lsv.request.structured:GuidedDecodingParams",
        "RepetitionDetectionParams": "lsv.request.repetition:RepetitionDetectionParams",
        "RequestOutputKind": "lsv.request.output_kind:RequestOutputKind",
        "StructuredOutputsParams": "lsv.request.structured:StructuredOutputsParams",
    },
    "vllm.sequence": _LOGPROB,
    "vllm.tokenizers": {"get_tokenizer": "vllm._tokenizers:get_tokenizer"},
    "vllm.transformers_utils.tokenizer": {"get_tokenizer": "vllm._tokenizers:get_tokenizer"},
    "vllm.utils": {**_PARSER, **_NETWORK, "random_uuid": "vllm._network:random_uuid"},
    "vllm.utils.argparse_utils": _PARSER,
    "vllm.utils.network_utils": _NETWORK,
    "vllm.v1.engine.async_llm": {"AsyncLLM": _ASYNC},
    "vllm.v1.engine.llm_engine": _ENGINE,
}
NAMES: Mapping[str, Mapping[str, str]] = {
    module: {**processors.NAMES.get(module, {}), **_OWN.get(module, {})} for module in {**processors.NAMES, **_OWN}
}
"""Maps each module to its names, and each name to its place, ``package.module:name``. Core lists the names that
logits processors import."""
