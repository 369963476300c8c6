"""Offers of native models say which models have a table of positions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lsv.offers import ModelOffer
from lsv.plugins.catalog import Catalog
from lsv_base.errors import CheckpointError, ConfigError
from lsv_doctor.models.tiny import tiny_config
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import engine_config

FAMILIES = {
    "BertModel": "bert", "XLMRobertaForSequenceClassification": "xlm-roberta", "DistilBertModel": "distilbert",
    "ModernBertModel": "modernbert", "GPT2LMHeadModel": "gpt2", "GPTBigCodeForCausalLM": "gpt_bigcode",
    "GPTNeoForCausalLM": "gpt_neo", "OPTForCausalLM": "opt", "GPTJForCausalLM": "gptj", "BloomForCausalLM": "bloom",
    "MptForCausalLM": "mpt", "GPTNeoXForCausalLM": "gpt_neox", "LlamaForCausalLM": "llama",
    "Qwen3ForCausalLM": "qwen3", "BartForConditionalGeneration": "bart", "PLBartForConditionalGeneration": "plbart",
    "MvpForConditionalGeneration": "mvp", "MBartForConditionalGeneration": "mbart",
    "M2M100ForConditionalGeneration": "m2m_100", "PegasusForConditionalGeneration": "pegasus",
    "BlenderbotForConditionalGeneration": "blenderbot", "BlenderbotSmallForConditionalGeneration": "blenderbot-small",
    "MarianMTModel": "marian", "FSMTForConditionalGeneration": "fsmt", "LEDForConditionalGeneration": "led",
    "BigBirdPegasusForConditionalGeneration": "bigbird_pegasus", "PegasusXForConditionalGeneration": "pegasus_x",
    "NllbMoeForConditionalGeneration": "nllb-moe", "ProphetNetForConditionalGeneration": "prophetnet",
    "SeamlessM4TForTextToText": "seamless_m4t", "T5ForConditionalGeneration": "t5",
    "MT5ForConditionalGeneration": "mt5",
    "UMT5ForConditionalGeneration": "umt5", "LongT5ForConditionalGeneration": "longt5",
    "T5Gemma2ForConditionalGeneration": "t5gemma2", "WhisperForConditionalGeneration": "whisper",
}  # fmt: skip
"""Architectures of each kind of positions, and their ``model_type``."""


@pytest.mark.parametrize("architecture", FAMILIES)
def test_models_without_a_position_for_every_token_are_offered_so(
    architecture: str, tmp_path: Path, catalog: Catalog
) -> None:
    (offer,) = (one for one in catalog.offers(ModelOffer) if architecture in one.architectures)
    assert _refuses_long_inputs(tmp_path, architecture, offer.name, catalog) == offer.bounded_positions


def _refuses_long_inputs(folder: Path, architecture: str, offer: str, catalog: Catalog) -> bool:
    keys: dict[str, Any] = tiny_config(FAMILIES[architecture]).to_dict()
    (folder / "config.json").write_text(json.dumps({**keys, "architectures": [architecture]}))
    try:
        declare(engine_config(folder, offer, max_len=1 << 20), catalog)
    except (ConfigError, CheckpointError) as refusal:
        if refusal.param != "max_model_len":
            raise
        return True
    return False
