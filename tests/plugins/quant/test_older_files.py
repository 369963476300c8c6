"""Checkpoints whose weight format stands in a file of its own, as AutoGPTQ and AutoAWQ wrote it at first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lsv_quant.plugin
from lsv.offers import QuantizerOffer
from lsv.resolve.overrides import older_quantization
from lsv_runtime.weights.quantizer import Quantizer
from lsv_testing.catalog import catalog_of

CATALOG = catalog_of(lsv_quant.plugin)


@pytest.mark.parametrize(
    ("file", "content", "method"),
    [
        (
            "quantize_config.json",
            {
                "bits": 4, "group_size": 128, "damp_percent": 0.01, "desc_act": True, "static_groups": False,
                "sym": True, "true_sequential": True, "model_name_or_path": None, "model_file_base_name": "model",
            },
            "gptq",
        ),
        ("quant_config.json", {"zero_point": True, "q_group_size": 128, "w_bit": 4, "version": "GEMM"}, "awq"),
    ],
)  # fmt: skip
def test_the_format_is_read_from_its_file(tmp_path: Path, file: str, content: dict, method: str):
    (tmp_path / "config.json").write_text("{}")
    assert older_quantization(tmp_path, CATALOG) == {}
    (tmp_path / file).write_text(json.dumps(content))
    found = older_quantization(tmp_path, CATALOG)["quantization_config"]
    assert found["quant_method"] == method
    (offer,) = (offer for offer in CATALOG.offers(QuantizerOffer) if offer.name == method)
    quantizer: Quantizer = CATALOG.load(offer)(found)
    assert quantizer.name == method
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    assert older_quantization(tmp_path, CATALOG) == {}, "config.json has the last word"
