"""The names that logits processors written for vLLM import."""

from __future__ import annotations

from collections.abc import Mapping

from lsv_offline.vllm_names.modules import Modules

_CLASSES: Mapping[str, str] = {
    name: f"lsv_offline.batched.interface:{name}"
    for name in (
        "AdapterLogitsProcessor",
        "BatchUpdate",
        "LogitsProcessor",
        "MoveDirectionality",
        "RequestLogitsProcessor",
        "process_dict_updates",
    )
}
NAMES: Mapping[str, Mapping[str, str]] = {
    "vllm": {"SamplingParams": "lsv.request.params:SamplingParams"},
    "vllm.config": {"VllmConfig": "lsv_offline.batched.loading:VllmConfig"},
    "vllm.logger": {"init_logger": "logging:getLogger"},
    "vllm.logits_process": {"LogitsProcessor": "lsv_offline.batched.interface:RequestLogitsProcessor"},
    "vllm.sampling_params": {"SamplingParams": "lsv.request.params:SamplingParams"},
    "vllm.v1.sample.logits_processor": _CLASSES,
    "vllm.v1.sample.logits_processor.builtin": {"process_dict_updates": _CLASSES["process_dict_updates"]},
    "vllm.v1.sample.logits_processor.interface": _CLASSES,
}
"""By module: each name and its place in lsv, ``package.module:name``. ``compat/vllm`` adds what programs import."""

BORROWED = Modules("vllm", NAMES)
"""Modules that a process lends to the processors it runs, where no distribution called vllm is installed."""
