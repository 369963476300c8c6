"""The log of a start: no figure is negative or empty, and the lines that users look for come first."""

from __future__ import annotations

import msgspec
import pytest

from lsv.cli.serve import log_start
from lsv.config import Fit, Reason
from lsv.engine import report
from lsv.settings import Declared, Given, gather, options
from lsv_testing.fakes.engine import engine_config


def fit(tokens: int) -> Fit:
    blocks = {"num_blocks": tokens // 4, "block_size": 4, "kv_bytes": tokens << 10}
    reasons = (Reason("kv_bytes", str(1 << 32), "a quarter of the memory"),)
    known = {"max_model_len": 200, "vocab_size": 97, "weight_bytes": 1 << 20, "reasons": reasons, **blocks}
    return Fit(**{field.name: known[field.name] for field in msgspec.structs.fields(Fit) if field.name in known})


def test_a_model_without_a_cache_logs_none(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "lsv"):
        report.log_fit(engine_config(), fit(0))
    assert "KV cache" not in caplog.text
    assert "Maximum concurrency" not in caplog.text
    assert "0.00x" not in caplog.text
    assert "Loading model weights took 0.0010 GiB" in caplog.text


def test_bytes_are_logged_in_units(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "lsv"):
        report.log_fit(engine_config(), fit(2048))
    assert "KV cache size: 2,048 tokens" in caplog.text
    assert "kv_bytes=4 GiB: a quarter of the memory" in caplog.text


@pytest.mark.parametrize(
    ("flags", "address"),
    [
        ({"port": 8123}, "http://127.0.0.1:8123"),
        ({"host": "::1", "port": 0}, "http://[::1]:a free port"),
        ({"uds": "/run/s"}, "unix socket /run/s"),
    ],
)
def test_a_server_logs_model_device_and_address_first(
    flags: dict[str, object], address: str, caplog: pytest.LogCaptureFixture
) -> None:
    declared = Declared(options.for_scope("serve", ()))
    settings = gather(declared, {name: Given(value, "test") for name, value in flags.items()})
    with caplog.at_level("INFO", "lsv"):
        log_start(engine_config(), settings)
    model, device, where = (record.getMessage() for record in caplog.records)
    assert model.startswith("model: fake")
    assert device.startswith("device: fake, float32, context of ")
    assert where == f"address: {address} (available once the model is loaded)"
