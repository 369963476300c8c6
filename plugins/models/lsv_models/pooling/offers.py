"""The encoders that are offered, by what their checkpoints call themselves."""

from __future__ import annotations

from lsv.offers import ModelOffer

_HEADS = ("Model", "ForSequenceClassification", "ForTokenClassification", "ForMaskedLM")
_TASKS = ("embed", "classify", "token_classify")


def _offer(name: str, load: str, *stems: str, bounded: bool = False, unused_positions: int = 0) -> ModelOffer:
    return ModelOffer(
        name,
        tuple(stem + head for stem in stems for head in _HEADS),
        f"lsv_models.pooling.{load}",
        _TASKS,
        causal=False,
        pooling="cls",
        unused_positions=unused_positions,
        bounded_positions=bounded,
    )


OFFERS = (
    _offer("bert", "bert:Bert", "Bert", bounded=True),
    _offer("roberta", "bert:Roberta", "Roberta", "XLMRoberta", "Camembert", bounded=True, unused_positions=2),
    _offer("distilbert", "distilbert:DistilBert", "DistilBert", bounded=True),
    _offer("modernbert", "modernbert:ModernBert", "ModernBert"),
    _offer("nomic_bert", "roped:NomicBert", "NomicBert"),
    _offer("gte", "roped:Gte", "New", "Gte"),
)
