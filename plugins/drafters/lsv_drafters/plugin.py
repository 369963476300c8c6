"""The drafters that lsv brings."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.offers import DrafterOffer

api = 2

_LENGTHS = ("prompt_lookup_max", "prompt_lookup_min")

_OF_SUFFIXES = (
    "suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests", "suffix_decoding_min_token_prob",
)  # fmt: skip


@hookimpl
def lsv_drafters() -> Iterable[DrafterOffer]:
    yield DrafterOffer("ngram", "lsv_drafters.ngram:NgramDrafter", options=_LENGTHS)
    yield DrafterOffer("suffix", "lsv_drafters.suffix:SuffixDrafter", options=_OF_SUFFIXES)
    yield DrafterOffer("draft_model", "lsv_drafters.model.drafter:ModelDrafter", needs="model")
    yield DrafterOffer(
        "mlp_speculator", "lsv_drafters.speculator:SpeculatorDrafter", needs="heads", model_types=("mlp_speculator",),
        places=("n_predict",),
    )  # fmt: skip
    yield DrafterOffer(
        "medusa", "lsv_drafters.medusa:MedusaDrafter", needs="heads", model_types=("medusa",),
        places=("num_heads", "medusa_num_heads"),
    )  # fmt: skip
    yield DrafterOffer(
        "mtp", "lsv_drafters.states.further:FurtherDrafter",
        aliases=("deepseek_mtp", "glm4_moe_mtp", "qwen3_next_mtp"), within=True,
    )  # fmt: skip
    yield DrafterOffer(
        "eagle", "lsv_drafters.states.drafter:EagleDrafter", needs="heads", architectures=("EagleLlamaForCausalLM",)
    )
    yield DrafterOffer(
        "eagle3", "lsv_drafters.states.drafter:Eagle3Drafter", needs="heads",
        architectures=("Eagle3LlamaForCausalLM", "LlamaForCausalLMEagle3"),
    )  # fmt: skip
