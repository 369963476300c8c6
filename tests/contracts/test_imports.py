"""Who may import whom, held over the syntax trees."""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "core"
FILES = sorted((CORE / "lsv").rglob("*.py"))
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
def imports(file: Path) -> list[Import]:
    return list(_walk(file, ast.parse(file.read_text(encoding="utf-8")), eager=True))


def _walk(file: Path, node: ast.AST, *, eager: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(file, node.lineno, alias.name, "", eager)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            module = f"{node.module}.{alias.name}" if node.module == "lsv" else str(node.module)
            yield Import(file, node.lineno, module, alias.name, eager)
    elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        return
    inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from _walk(file, child, eager=eager and not inside)


def below(*parts: str) -> list[Path]:
    """The files of parts of core: ``"kv"`` a package, ``"request"`` a module."""
    found = [
        file
        for file in FILES
        for part in parts
        if (CORE / "lsv" / part) in file.parents or file == CORE / "lsv" / f"{part}.py"
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
        "request": r"lsv\.(errors|request)(\..*)?",
        "kv": r"lsv\.(kv|request|errors)(\..*)?",
        "scheduler": r"lsv\.(scheduler|kv|request|errors|config|capabilities)(\..*)?",
    }
    standard = (
        r"__future__|bisect|collections\.abc|collections|copy|dataclasses|enum|functools|hashlib|heapq|itertools|math|pathlib"
        r"|struct|typing"
    )
    for part, own in allowed.items():
        for file in below(part):
            pattern = re.compile(f"{standard}|msgspec|{own}")
            wrong = [str(found) for found in imports(file) if not pattern.fullmatch(found.module)]
            assert wrong == []


BELOW = {
    "attention", "devices", "drafts", "logits_processor", "nn", "ops", "pipeline", "products", "testing",
    "weights", "worker", "adapters.checkpoint", "adapters.experts", "adapters.magnitudes", "adapters.reading.main",
    "adapters.rows", "adapters.shares", "adapters.slots", "adapters.store", "adapters.vocabulary",
}  # fmt: skip
"""Parts of core that may import torch. All others are above the line."""


def is_below(file: Path) -> bool:
    module = ".".join(file.relative_to(CORE / "lsv").with_suffix("").parts)
    return any(module == part or module.startswith(f"{part}.") for part in BELOW)


def test_no_torch_above_the_line() -> None:
    parts = "|".join(re.escape(part) for part in BELOW)
    above = [file for file in FILES if not is_below(file)]
    assert offences(above, rf"(torch|transformers|lsv\.({parts}))(\..*)?", eager_only=True) == []


@pytest.mark.parametrize("part", sorted(BELOW))
def test_what_is_below_the_line_needs_torch(part: str) -> None:
    assert offences(below(part.replace(".", "/")), r"(torch|lsv\.(nn|ops|weights|attention))(\..*)?")


def test_models_and_ops_know_no_scheduler() -> None:
    files = below("nn", "ops", "products", "attention", "platform", "weights")
    assert offences(files, r"lsv\.(scheduler|engine|worker|cli|llm)(\..*)?") == []


def test_models_and_weights_know_no_configuration_of_an_engine() -> None:
    """They are made from what loading hands them: no options, no catalog, no search for checkpoints."""
    assert offences(below("nn", "weights"), r"lsv\.(config|settings|plugins|resolve)(\..*)?") == []


def test_the_seam_to_hardware_is_below_plugins() -> None:
    files = below("capabilities", "config", "offers", "platform")
    assert offences(files, r"lsv\.(plugins|resolve|settings|devices)(\..*)?") == []


def test_the_worker_knows_only_the_schedulers_message() -> None:
    files = below("worker")
    assert offences(files, r"lsv\.scheduler\.(?!plan$).*") == []
    assert offences(files, r"lsv\.(cli|llm)(\..*)?|lsv\.engine\.(?!executor$|messages$).*") == []


def test_core_knows_no_plugin_and_no_web_framework() -> None:
    assert offences(FILES, r"lsv_.*") == []
    assert offences(FILES, r"(sanic|gradio|fastapi|starlette|uvicorn)(\..*)?") == []


def test_core_fetches_and_decodes_no_media() -> None:
    assert offences(FILES, r"(av|PIL|httpcore2|httpx2)(\..*)?") == []


def test_a_server_decodes_in_other_processes() -> None:
    package = ROOT / "plugins" / "multimodal" / "lsv_multimodal"
    server = [package / "service.py", package / "cache.py", *(package / "fetching").iterdir()]
    server += [file for file in (package / "worker").iterdir() if file.stem != "main"]
    heavy = r"av|PIL|numpy|torch|transformers|lsv_multimodal\.(decoding|preprocessing|worker\.main)"
    assert offences((file for file in server if file.suffix == ".py"), rf"({heavy})(\..*)?") == []


@pytest.mark.parametrize("folder", PLUGIN_FOLDERS, ids=lambda folder: folder.name)
def test_plugins_know_lsv_only(folder: Path) -> None:
    own = f"lsv_{folder.name}"
    files = sorted(folder.rglob("*.py"))
    assert offences(files, rf"lsv_(?!{folder.name}\b).*") == []
    private = [
        str(found)
        for file in files
        for found in imports(file)
        if found.module.startswith("lsv.")
        and not found.module.startswith(own)
        and any(part.startswith("_") and not part.endswith("__") for part in [*found.module.split("."), found.name])
    ]
    assert private == []


@pytest.mark.parametrize("folder", ["plugins/api", "webui"])
def test_frontends_know_clients_not_models(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert offences(files, r"lsv\.(nn|weights|worker|scheduler|ops|attention)(?!\.plan$)(\..*)?|torch(\..*)?") == []


@pytest.mark.parametrize("folder", PLUGIN_FOLDERS, ids=lambda folder: folder.name)
def test_manifests_are_light(folder: Path) -> None:
    manifest = folder / f"lsv_{folder.name}" / "plugin.py"
    allowed = rf"(__future__|collections\.abc|functools|os|pathlib|typing|pluggy|(lsv|lsv_{folder.name})(\..*)?)"
    wrong = [str(f) for f in imports(manifest) if f.eager and not re.fullmatch(allowed, f.module)]
    assert wrong == []


def test_the_checker_sees_what_it_should(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("import torch\nfrom lsv import settings\ndef f():\n    from torch import nn\n")
    found = [(one.module, one.eager) for one in imports(file)]
    assert found == [("torch", True), ("lsv.settings", True), ("torch", False)]
