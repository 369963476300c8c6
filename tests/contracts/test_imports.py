"""Who may import whom, held over the syntax trees."""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "core" / "lsv"
BASE = ROOT / "core" / "lsv_base"
RUNTIME = ROOT / "plugins" / "runtime" / "lsv_runtime"
FILES = sorted((ROOT / "core").rglob("*.py"))
"""Of core and of the ground library below it."""
PLUGIN_FOLDERS = sorted(folder for folder in (*(ROOT / "plugins").iterdir(), ROOT / "webui") if folder.is_dir())


@dataclass(frozen=True)
class Import:
    """A module, or a name in one, that a file imports. ``eager``: by importing the file, not when a function runs."""

    file: Path
    line: int
    module: str
    name: str
    eager: bool

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.module}"


@cache
def imports(file: Path, *, with_types: bool = False) -> list[Import]:
    """What a file imports. ``with_types``: for type checkers, too."""
    return list(_walk(file, ast.parse(file.read_text(encoding="utf-8")), eager=True, with_types=with_types))


def _walk(file: Path, node: ast.AST, *, eager: bool, with_types: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(file, node.lineno, alias.name, "", eager)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            module = f"{node.module}.{alias.name}" if node.module == "lsv" else str(node.module)
            yield Import(file, node.lineno, module, alias.name, eager)
    elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING") and not with_types:
        return
    inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from _walk(file, child, eager=eager and not inside, with_types=with_types)


def parts_of(package: Path, *parts: str) -> list[Path]:
    """The files of parts of a package: ``"kv"`` a folder, ``"config"`` a module."""
    found = [
        file
        for file in sorted(package.rglob("*.py"))
        for part in parts
        if (package / part) in file.parents or file == package / f"{part}.py"
    ]
    assert found, parts
    return found


def offences(files: Iterable[Path], forbidden: str, *, eager_only: bool = False) -> list[str]:
    pattern = re.compile(forbidden)
    return [
        str(found)
        for file in files
        for found in imports(file)
        if pattern.fullmatch(found.module) and (found.eager or not eager_only)
    ]


def test_scheduler_kv_and_request_stand_alone() -> None:
    allowed = {
        "request": r"lsv\.request(\..*)?",
        "kv": r"lsv\.(kv|request)(\..*)?",
        "scheduler": r"lsv\.(scheduler|kv|request|config|capabilities)(\..*)?",
    }
    standard = (
        r"__future__|bisect|collections\.abc|collections|copy|dataclasses|enum|functools|hashlib|heapq|itertools|math|pathlib"
        r"|struct|typing"
    )
    for part, own in allowed.items():
        for file in parts_of(CORE, part):
            pattern = re.compile(rf"{standard}|msgspec|lsv_base\.errors|{own}")
            wrong = [str(found) for found in imports(file) if not pattern.fullmatch(found.module)]
            assert wrong == []


def test_the_ground_library_imports_nothing_of_lsv() -> None:
    allowed = {*sys.stdlib_module_names, "msgspec", "re2", "regex", "lsv_base"}
    strangers = {
        (str(found.file.relative_to(BASE)), package)
        for file in sorted(BASE.rglob("*.py"))
        for found in imports(file, with_types=True)
        if (package := found.module.partition(".")[0]) not in allowed
    }
    # the process that runs a checkpoint's code, which needs the library that the code is for
    assert strangers == {("remote_code/main.py", "transformers")}


def test_core_has_no_torch() -> None:
    """Neither when it is imported, nor in a function, nor for its types."""
    heavy = re.compile(r"(torch|transformers|triton)(\..*)?")
    allowed = {
        "lsv/text/convert.py",
        "lsv_base/remote_code/main.py",
    }  # processes that read what only transformers reads
    found = {
        str(file.relative_to(ROOT / "core"))
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for module in _names(node)
        if heavy.fullmatch(module)
    }
    assert found == allowed


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [str(node.module)] if isinstance(node, ast.ImportFrom) else []


def test_core_knows_no_plugin_and_no_web_framework() -> None:
    assert offences(FILES, r"lsv_(?!base\b).*") == []
    assert offences(FILES, r"(sanic|gradio|fastapi|starlette|uvicorn)(\..*)?") == []


def test_models_and_ops_know_no_scheduler() -> None:
    files = parts_of(RUNTIME, "nn", "ops", "products", "attention", "devices", "weights")
    assert offences(files, r"(lsv\.(scheduler|engine|cli)|lsv_runtime\.worker)(\..*)?") == []


def test_models_and_weights_know_no_configuration_of_an_engine() -> None:
    """They are made from what loading hands them: no options, no catalog, no search for checkpoints."""
    assert offences(parts_of(RUNTIME, "nn", "weights"), r"lsv\.(config|settings|plugins|resolve)(\..*)?") == []


def test_the_seam_to_hardware_is_below_plugins() -> None:
    files = parts_of(CORE, "capabilities", "config", "offers", "platform")
    assert offences(files, r"lsv\.(plugins|resolve|settings)(\..*)?") == []


def test_the_worker_knows_only_the_schedulers_message() -> None:
    files = parts_of(RUNTIME, "worker")
    assert offences(files, r"lsv\.scheduler\.(?!plan$).*") == []
    assert offences(files, r"lsv\.cli(\..*)?|lsv\.engine\.(?!executor$|messages$).*") == []


def test_core_fetches_and_decodes_no_media() -> None:
    assert offences(FILES, r"(av|PIL|httpcore2|httpx2)(\..*)?") == []


def test_a_server_decodes_in_other_processes() -> None:
    package = ROOT / "plugins" / "multimodal" / "lsv_multimodal"
    server = [package / "service.py", package / "cache.py", *(package / "fetching").iterdir()]
    server += [file for file in (package / "worker").iterdir() if file.stem != "main"]
    heavy = r"av|PIL|numpy|torch|transformers|lsv_multimodal\.(decoding|preprocessing|worker\.main)"
    assert offences((file for file in server if file.suffix == ".py"), rf"({heavy})(\..*)?") == []


@pytest.mark.parametrize("folder", PLUGIN_FOLDERS, ids=lambda folder: folder.name)
def test_plugins_know_lsv_its_ground_and_its_runtime_only(folder: Path) -> None:
    own = f"lsv_{folder.name}"
    files = sorted(folder.rglob("*.py"))
    makes_miniatures = folder.name == "doctor"  # for lsv models --check, as tests do
    allowed = f"{folder.name}|base|runtime" + ("|testing" if makes_miniatures else "")
    assert offences(files, rf"lsv_(?!({allowed})\b).*") == []
    private = [
        str(found)
        for file in files
        for found in imports(file)
        if re.match(r"lsv(_base|_runtime)?\.", found.module)
        and not found.module.startswith(own)
        and any(part.startswith("_") and not part.endswith("__") for part in [*found.module.split("."), found.name])
    ]
    assert private == []


@pytest.mark.parametrize("folder", ["plugins/api", "webui"])
def test_frontends_know_clients_not_models(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert offences(files, r"lsv\.scheduler(?!\.plan$)(\..*)?|lsv_runtime(\..*)?|torch(\..*)?") == []


MANIFESTS = [manifest for folder in PLUGIN_FOLDERS for manifest in folder.glob("lsv_*/plugin.py")]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest.parent.name)
def test_manifests_are_light(manifest: Path) -> None:
    own = manifest.parent.name
    allowed = rf"(__future__|collections\.abc|functools|os|pathlib|typing|pluggy|(lsv|lsv_base|{own})(\..*)?)"
    wrong = [str(f) for f in imports(manifest) if f.eager and not re.fullmatch(allowed, f.module)]
    assert wrong == []


def test_the_checker_sees_what_it_should(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("import torch\nfrom lsv import settings\ndef f():\n    from torch import nn\n")
    found = [(one.module, one.eager) for one in imports(file)]
    assert found == [("torch", True), ("lsv.settings", True), ("torch", False)]
