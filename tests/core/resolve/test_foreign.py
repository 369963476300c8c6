"""Folders with models for other programs are refused, and the error names the program."""

import struct
from pathlib import Path

import pytest

from lsv.resolve.files import refuse_foreign
from lsv_base.errors import ConfigError

SPEC = b"WhisperSpec\0"
CTRANSLATE2 = struct.pack("<IH", 6, len(SPEC)) + SPEC + bytes(100)
ZIPPED = b"PK\x03\x04" + bytes(100)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"model.bin": CTRANSLATE2}, "model.bin is a CTranslate2 model"),
        ({"model.onnx": b""}, "model.onnx is a model for ONNX"),
        ({"onnx/model_int8.onnx": b""}, "onnx/model_int8.onnx is a model for ONNX"),
        ({"openvino_model.xml": b"", "openvino_model.bin": b""}, "openvino_model.xml is a model for OpenVINO"),
        ({"tf_model.h5": b""}, "tf_model.h5 is a model for TensorFlow"),
    ],
)
def test_other_programs_models_are_named(files: dict[str, bytes], said: str, tmp_path: Path):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=f"{said}, which lsv can't read: give the model's original checkpoint"):
        refuse_foreign(tmp_path, "auto")
    refuse_foreign(tmp_path, "dummy")
    (tmp_path / "model.safetensors").write_bytes(b"")
    refuse_foreign(tmp_path, "auto")


@pytest.mark.parametrize("name", ["model.bin", "pytorch_model.bin", "short.bin"])
def test_weights_that_torch_saved_are_taken(name: str, tmp_path: Path):
    (tmp_path / name).write_bytes(b"abc" if name == "short.bin" else ZIPPED)
    refuse_foreign(tmp_path, "auto")
    if name != "short.bin":
        (tmp_path / "tf_model.h5").write_bytes(b"")
        refuse_foreign(tmp_path, "auto")
