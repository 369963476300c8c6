"""Only ``lsv_base.untrusted.files`` opens untrusted files: regular files of limited size.

Every other call that opens a file is listed here with the origin of its files.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(file for room in ("core", "plugins", "webui") for file in (ROOT / room).rglob("*.py"))
ANYWHERE = {"read_bytes", "read_text", "from_file", "fromfile", "memmap", "safe_open", "load_file", "copyfile"}
OF_MODULES = {
    ("os", "open"), ("io", "open"), ("torch", "load"), ("np", "load"), ("np", "memmap"), ("zipfile", "ZipFile"),
    ("tarfile", "open"), ("gzip", "open"), ("mmap", "mmap"), ("safetensors", "safe_open"), ("Image", "open"),
    ("PilImage", "open"), ("av", "open"), ("shutil", "copy"), ("shutil", "copyfile"),
}  # fmt: skip
NOT_FILES = {
    "CommandContext.open", "self._fetches.open", "self._open.open", "self.parts.open",
    "one.open", "self.open",
    "self._kv.open", "self._speculation.open", "platform.open", "part.open", "call.open", "self.read_text",
}  # fmt: skip
"""Methods called ``open`` of objects that are not files."""
THE_GATE = "core/lsv_base/untrusted/files.py"
OUR_OWN = {
    "core/lsv/cli/conversation.py": "files that the user names",
    "core/lsv/cli/main.py": "/dev/null",
    "core/lsv/cli/questions.py": "the user's own questions",
    "core/lsv_base/processes/usage.py": "/proc",
    "core/lsv/engine/replicas/rhythm.py": "pipes of our own",
    "core/lsv/engine/supervision/state.py": "a private folder of our own",
    "plugins/offline/lsv_offline/engine_args.py": "the operator's configuration",
    "core/lsv_base/processes/building.py": "build cache, opened without links",
    "core/lsv_base/processes/calls.py": "a private folder of our own",
    "core/lsv_base/processes/confinement/landlock.py": "paths, not contents",
    "core/lsv_base/processes/confinement/limits.py": "/proc",
    "core/lsv_base/processes/confinement/probe.py": "tries what a confined process may not do",
    "core/lsv_base/processes/folder.py": "folders of our own",
    "core/lsv_base/processes/logs.py": "the operator's configuration",
    "core/lsv_base/processes/outlet.py": "standard output and error, opened once more",
    "core/lsv_base/processes/ports.py": "/proc",
    "core/lsv/media/shared.py": "memory of our own",
    "core/lsv_base/processes/trust.py": "/proc",
    "core/lsv/resolve/experts/map.py": "a file that the operator names",
    "core/lsv/settings/__init__.py": "the operator's configuration",
    "core/lsv/text/shipped_templates.py": "a template that the operator names, or one of our own",
    "plugins/runtime/lsv_runtime/weights/kv_scales.py": "a file that the operator names",
    "plugins/runtime/lsv_runtime/weights/pickled.py": "torch.load after check_regular, or of an open file",
    "core/lsv/text/backends.py": "Tokenizer.from_file after check_regular",
    "plugins/runtime/lsv_runtime/worker/load/saved.py": "copies of the checkpoint that was loaded",
    "plugins/runtime/lsv_runtime/worker/nodes/shared_store.py": "a private folder of our own",
    "plugins/hpu/lsv_hpu/steps/trace.py": "a file of our own, in the operator's folder",
    "plugins/api/lsv_api/accounts/account.py": "the operator's accounts",
    "plugins/api/lsv_api/accounts/buckets.py": "memory of our own",
    "plugins/api/lsv_api/metrics/room.py": "metrics of our own",
    "plugins/api/lsv_api/responding/database.py": "a file of our own, or one that the operator names",
    "plugins/api/lsv_api/responding/workers.py": "locks of our own",
    "plugins/cpu/lsv_cpu/arena.py": "memory of our own",
    "plugins/cpu/lsv_cpu/communicator.py": "memory of our own",
    "plugins/cpu/lsv_cpu/machine.py": "/sys",
    "plugins/cpu/lsv_cpu/native.py": "sources of our own",
    "plugins/cuda/lsv_cuda/emulation.py": "Platform.open",
    "plugins/cuda/lsv_cuda/machine.py": "/sys",
    "plugins/demo/lsv_demo/held_out.py": "a file of our own",
    "plugins/hpu/lsv_hpu/devices.py": "/sys",
    "plugins/hpu/lsv_hpu/emulation/platform.py": "Platform.open",
    "plugins/hpu/lsv_hpu/neural_compressor/files.py": "measurements that the operator names",
    "plugins/kv_offload/lsv_kv_offload/files.py": "opened with O_NOFOLLOW and checked by its own header",
    "plugins/models/lsv_models/families/__init__.py": "a file of our own",
    "plugins/models/lsv_models/senses/omni/qwen3.py": "read_text of a config",
    "plugins/models/lsv_models/senses/qwen3_vl.py": "read_text of a config",
    "plugins/models/lsv_models/seq2seq/pegasus_x.py": "read_text of an encoder",
    "plugins/multimodal/lsv_multimodal/assets.py": "samples that benchmarks fetch",
    "plugins/multimodal/lsv_multimodal/decoding/containers.py": "bytes in memory, in a confined process",
    "plugins/multimodal/lsv_multimodal/decoding/images.py": "bytes in memory, in a confined process",
    "plugins/multimodal/lsv_multimodal/families/fuyu.py": "Tokenizer.from_file after check_regular",
    "plugins/multimodal/lsv_multimodal/families/named_tokens.py": "Tokenizer.from_file after check_regular",
    "plugins/multimodal/lsv_multimodal/fetching/sources.py": "opened without links, checked to be regular",
    "plugins/multimodal/lsv_multimodal/offline.py": "a file that the caller names",
    "plugins/xpu/lsv_xpu/emulation/platform.py": "Platform.open",
    "plugins/xpu/lsv_xpu/sysfs.py": "/sys",
    "webui/lsv_webui/chat/parts.py": "an upload that Gradio has stored",
    "webui/lsv_webui/theme.py": "files of our own",
    "webui/lsv_webui/orphan.py": "/dev/null and /proc",
}
"""Modules that open other files, with the origin of these files."""
OF_COMMANDS = (
    "plugins/runtime/lsv_runtime/emulation/", "plugins/testing/", "plugins/bench/", "plugins/doctor/",
    "plugins/scaffold/",
)  # fmt: skip
"""Commands and tests open files that their user names, in the user's own process."""


def opens(file: Path) -> Iterator[int]:
    """The lines of a module that open a file."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id="open" | "safe_open" | "load_file"):
                yield node.lineno
            case ast.Attribute(value=ast.Name(id=module), attr=name) if (module, name) in OF_MODULES:
                yield node.lineno
            case ast.Attribute(attr=name) if name in ANYWHERE or name == "open":
                if ast.unparse(node.func) not in NOT_FILES:
                    yield node.lineno


def test_files_of_others_are_opened_by_one_module() -> None:
    found = {str(file.relative_to(ROOT)): list(opens(file)) for file in SOURCES}
    found = {file: lines for file, lines in found.items() if lines and not file.startswith(OF_COMMANDS)}
    strangers = {file: lines for file, lines in found.items() if file not in {*OUR_OWN, THE_GATE}}
    assert not strangers, "open untrusted files with lsv_base.untrusted.files; list lsv's and the operator's own here"
    assert not OUR_OWN.keys() - found.keys(), "these do not belong in the list any more"


@pytest.mark.parametrize(
    "source",
    [
        "from pathlib import Path\nfound = (Path('adapter') / 'adapter_config.json').read_bytes()\n",
        "def f(path):\n    with path.open('rb') as file:\n        return file.read()\n",
        "import os\ndef f(path):\n    return os.open(path, os.O_RDONLY)\n",
        "import torch\ndef f(path):\n    return torch.load(path, weights_only=True)\n",
        "def f(path):\n    return open(path).read()\n",
        "from safetensors.torch import load_file\ndef f(path):\n    return load_file(path)\n",
    ],
)
def test_the_rule_sees_a_planted_open(tmp_path: Path, source: str) -> None:
    (tmp_path / "planted.py").write_text(source)
    assert list(opens(tmp_path / "planted.py"))
