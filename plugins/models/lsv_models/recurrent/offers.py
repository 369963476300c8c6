"""What this package offers; imports no torch."""

from __future__ import annotations

from lsv.offers import ModelOffer

_BLOCK = 256
"""A state of these is as large as the K and V of hundreds of tokens."""
_FURTHER = {"qwen3_next": "Qwen3NextFurther", "qwen3_5": "Qwen35Further", "qwen3_5_moe": "Qwen35MoeFurther"}


def _offer(name: str, architecture: str, load: str, block_size: int | None = None) -> ModelOffer:
    further = f"lsv_models.recurrent.delta.further:{_FURTHER[name]}" if name in _FURTHER else None
    return ModelOffer(name, (architecture,), f"lsv_models.recurrent.{load}", block_size=block_size, further=further)


OFFERS = (
    _offer("mamba", "MambaForCausalLM", "mamba:Mamba"),
    _offer("falcon_mamba", "FalconMambaForCausalLM", "mamba:FalconMamba"),
    _offer("mamba2", "Mamba2ForCausalLM", "mamba2:Mamba2"),
    _offer("bamba", "BambaForCausalLM", "bamba:Bamba", _BLOCK),
    _offer("jamba", "JambaForCausalLM", "jamba:Jamba", _BLOCK),
    _offer("lfm2", "Lfm2ForCausalLM", "lfm.lfm2:Lfm2"),
    _offer("lfm2_moe", "Lfm2MoeForCausalLM", "lfm.lfm2:Lfm2Moe"),
    _offer("lfm3", "Lfm3ForCausalLM", "lfm.lfm3:Lfm3"),
    _offer("qwen3_next", "Qwen3NextForCausalLM", "delta.qwen3_next:Qwen3Next", _BLOCK),
    _offer("qwen3_5", "Qwen3_5ForCausalLM", "delta.qwen3_next:Qwen35", _BLOCK),
    _offer("qwen3_5_moe", "Qwen3_5MoeForCausalLM", "delta.qwen3_next:Qwen35Moe", _BLOCK),
    _offer("olmo_hybrid", "OlmoHybridForCausalLM", "delta.olmo_hybrid:OlmoHybrid", _BLOCK),
    _offer("lara_mini", "LaraMiniForCausalLM", "delta.lara_mini:LaraMini", _BLOCK),
    _offer("kimi_linear", "KimiLinearForCausalLM", "delta.kimi_linear:KimiLinear", _BLOCK),
    _offer("bailing_hybrid", "BailingHybridForCausalLM", "delta.bailing:BailingHybrid", _BLOCK),
    _offer("minimax", "MiniMaxForCausalLM", "minimax:MiniMax", _BLOCK),
    _offer("nemotron_h", "NemotronHForCausalLM", "nemotron_h:NemotronH", _BLOCK),
    _offer("granitemoehybrid", "GraniteMoeHybridForCausalLM", "granite_hybrid:GraniteHybrid", _BLOCK),
    _offer("zamba", "ZambaForCausalLM", "zamba.zamba:Zamba", _BLOCK),
    _offer("zamba2", "Zamba2ForCausalLM", "zamba.zamba2:Zamba2", _BLOCK),
    _offer("recurrent_gemma", "RecurrentGemmaForCausalLM", "recurrent_gemma:RecurrentGemma", _BLOCK),
    _offer("rwkv", "RwkvForCausalLM", "rwkv:Rwkv"),
    _offer("xlstm", "xLSTMForCausalLM", "xlstm:XLSTM"),
    _offer("zaya", "ZayaForCausalLM", "zaya:Zaya", _BLOCK),
    _offer("falcon_h1", "FalconH1ForCausalLM", "falcon_h1:FalconH1", _BLOCK),
)
"""Recurrent and hybrid families. Without attention nothing is lost on small blocks."""
