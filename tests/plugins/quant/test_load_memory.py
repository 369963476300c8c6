"""What loading holds: never the plain model, but the quantised one and one plain layer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import lsv_models.plugin
import lsv_quant.plugin
from lsv_runtime.worker.load.declared import declare
from lsv_runtime.worker.load.loaded import fill, open_source
from lsv_testing.catalog import catalog_of
from lsv_testing.model import engine_config

FORMATS = ("int8", "sym_int4", "asym_int4", "nf4")
MEASURE = """
import re, sys
from pathlib import Path
import torch
import lsv_models.plugin, lsv_quant.plugin
from lsv_runtime.worker.load.declared import declare
from lsv_runtime.worker.load.loaded import fill, open_source
from lsv_testing.catalog import catalog_of
from lsv_testing.model import engine_config

def status(key):
    return int(re.search(key + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10

catalog = catalog_of(lsv_models.plugin, lsv_quant.plugin)
for folder in sys.argv[1:3]:  # the first time to have all code and its buffers in memory
    config = engine_config(Path(folder), "llama", dtype="bfloat16", quantization=sys.argv[3])
    declared = declare(config, catalog)
    source = open_source(config, declared, catalog)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = status("VmRSS")
    fill(declared, source)
    peak = status("VmHWM") - before
print(peak, declared.weight_bytes)
"""


def write(folder: Path, *, hidden: int, inner: int, vocab: int, layers: int, tied: bool) -> Path:
    """A Llama checkpoint in bfloat16."""
    block = {
        **{f"self_attn.{name}_proj.weight": (hidden, hidden) for name in "qkvo"},
        "mlp.gate_proj.weight": (inner, hidden), "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,),
    }  # fmt: skip
    shapes = {f"model.layers.{n}.{name}": shape for n in range(layers) for name, shape in block.items()}
    shapes |= {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    shapes |= {} if tied else {"lm_head.weight": (vocab, hidden)}
    some = torch.randn(hidden, generator=torch.Generator().manual_seed(0)).bfloat16()
    folder.mkdir()
    save_file({n: some.repeat(*s[:-1], s[-1] // hidden) for n, s in shapes.items()}, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": hidden, "intermediate_size": inner,
        "vocab_size": vocab, "num_hidden_layers": layers, "num_attention_heads": hidden // 64,
        "tie_word_embeddings": tied, "dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.row("F-400", "F-954", "F-979")
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("tied", [False, True])
def test_the_model_never_holds_more_than_one_plain_layer(name: str, tied: bool, tmp_path: Path) -> None:
    folder = write(tmp_path / "model", hidden=128, inner=256, vocab=2048, layers=4, tied=tied)
    config = engine_config(folder, "llama", dtype="bfloat16", quantization=name)
    catalog = catalog_of(lsv_models.plugin, lsv_quant.plugin)
    declared = declare(config, catalog)
    declared.filled = True  # weight_bytes now means what is held
    held: list[int] = []
    source = open_source(config, declared, catalog)
    fill(declared, source, lambda done, total: held.append(declared.weight_bytes))
    largest = 2 * 128 * (2 * 256 if tied else 2048)
    assert max(held) <= declared.weight_bytes + largest
    assert max(held) < sum(file.stat().st_size for file in folder.glob("*.safetensors"))


@pytest.mark.row("F-954", "F-979", "F-427")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["sym_int4", "nf4"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_process_never_holds_the_plain_model(name: str, tied: bool, tmp_path: Path) -> None:
    first = write(tmp_path / "first", hidden=128, inner=256, vocab=2048, layers=2, tied=tied)
    hidden, inner, vocab = 768, 3072, 32768
    model = write(tmp_path / "model", hidden=hidden, inner=inner, vocab=vocab, layers=12, tied=tied)
    command = [sys.executable, "-c", MEASURE, str(first), str(model), name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    peak, quantised = map(int, done.stdout.split())
    plain = (model / "model.safetensors").stat().st_size
    layer = 2 * hidden * (2 * inner if tied else vocab)
    room = 88 << 20  # what malloc keeps of what was freed, which does not grow with the model
    assert quantised + layer + room < plain
    assert peak < quantised + layer + room, f"{peak >> 20} MiB, of them {quantised >> 20} MiB stay"
