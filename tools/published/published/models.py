"""The published models as files that lsv serves. Those in another form are converted once.

python -m published.models PLACE      convert all, before tests in several processes need them
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from lsv.text.tokenizer import Tokenizer
from lsv_quant.gguf.file import read_gguf
from lsv_quant.gguf.tokenizer import write_tokenizer
from lsv_testing.adapters import linear_layers, write_adapter
from published.packages import provide
from published.prompts import read_calibration


class Published:
    """All in one folder, which :func:`published.packages.provide` fills."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def folder(self, name: str) -> Path:
        """What packages.tsv calls ``name``. Raises ``PackageError``."""
        return provide(name, self.place)

    def smollm2(self) -> Path:
        """SmolLM2-135M-Instruct, a GGUF file in Q4_1."""
        return self.folder("smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"

    def gemma3(self) -> Path:
        """Gemma 3 270M, a GGUF file in Q4_K_M. It is a base model, without a chat template."""
        return self.folder("gemma3") / "gemma-3-270m-q4_k_m.gguf"

    def plain_smollm2(self) -> Path:
        """The same weights as in the GGUF file, in float32."""
        return self._made("smollm2-plain", lambda target: _save_plain(self.smollm2(), target))

    def plain_gemma3(self) -> Path:
        """The same weights as in the GGUF file, in float32."""
        return self._made("gemma3-plain", lambda target: _save_plain(self.gemma3(), target))

    def fitted(self, plain: Path, format: str) -> Path:
        """A plain model in a weight format that was fitted to :func:`published.prompts.read_calibration`."""
        return self._made(f"{plain.name}-{format}", lambda target: self._fit(plain, format, target))

    def tokenizer(self, file: Path) -> Tokenizer:
        """The tokenizer of a GGUF file, with its chat template."""
        folder = self._made(f"{file.stem}-tokenizer", lambda target: _write_tokenizer(file, target))
        return Tokenizer.load(folder)

    def whisper(self) -> Path:
        """Whisper base, in float32."""
        return self._made("whisper-plain", self._convert)

    def adapter(self) -> Path:
        """Random weights for all products of SmolLM2's layers, large enough to change its answers."""
        return self._made("adapter", self._write_adapter)

    def convert(self) -> None:
        """Make all folders."""
        for file in (self.smollm2(), self.gemma3()):
            self.tokenizer(file)
        self.adapter()
        self.whisper()

    def _fit(self, plain: Path, format: str, target: Path) -> None:
        text = self.place / "calibration.txt"
        text.write_text(read_calibration(self.folder("text")), encoding="utf-8")
        options = ["--quantization", format, "--quantization-calibration", str(text), "--platform", "cpu"]
        subprocess.run([sys.executable, "-m", "lsv", "quantize", str(plain), str(target), *options], check=True)

    def _convert(self, target: Path) -> None:
        from published.whisper import convert_whisper

        convert_whisper(self.folder("whisper"), target)

    def _write_adapter(self, target: Path) -> None:
        checkpoint = self.plain_smollm2()
        write_adapter(target, checkpoint, list(linear_layers(checkpoint)), rank=8, alpha=16.0, spread=0.08)

    def _made(self, name: str, make: Callable[[Path], None]) -> Path:
        """A folder that ``make`` fills. It gets its name when it is complete."""
        folder = self.place / name
        if not folder.exists():
            unfinished = self.place / f"{name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            make(unfinished)
            unfinished.rename(folder)
        return folder


def _save_plain(file: Path, target: Path) -> None:
    from published.reference import save_plain

    save_plain(file, target)


def _write_tokenizer(file: Path, target: Path) -> None:
    target.mkdir()
    write_tokenizer(read_gguf(file).metadata, target)


if __name__ == "__main__":
    Published(Path(sys.argv[1])).convert()
