"""What may not stand in the source, and how long files and functions may be."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = sorted((ROOT / "core" / "lsv").rglob("*.py"))
PLUGINS = sorted(file for folder in ("plugins", "webui", "tools") for file in (ROOT / folder).rglob("*.py"))
PLATFORMS = {"cpu", "xpu", "hpu", "cuda", "rocm", "tpu", "triton"}
MAX_FILE, MAX_FUNCTION = 400, 80


def nodes(files: list[Path]) -> Iterator[tuple[str, ast.AST]]:
    for file in files:
        name = file.relative_to(ROOT)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            yield f"{name}:{getattr(node, 'lineno', 0)}", node


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of names and attributes, "" of anything else; ``ast.unparse`` is slow."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def test_core_asks_no_device_module() -> None:
    wrong = [
        place
        for place, node in nodes(CORE)
        if isinstance(node, ast.Attribute) and dotted(node) in {f"torch.{name}" for name in PLATFORMS - {"cpu"}}
    ]
    assert wrong == []


def test_core_compares_no_platform_name() -> None:
    wrong = []
    for place, node in nodes(CORE):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            words = {c.value for side in sides for c in ast.walk(side) if isinstance(c, ast.Constant)}
            if words & PLATFORMS:
                wrong.append(place)
        if isinstance(node, ast.MatchValue) and getattr(node.value, "value", None) in PLATFORMS:
            wrong.append(place)
    assert wrong == []


def test_nothing_that_runs_what_it_reads() -> None:
    banned = {"eval", "exec", "pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "multiprocessing"}
    wrong = []
    for place, node in nodes(CORE + PLUGINS):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in banned:
            wrong.append(place)
        if isinstance(node, ast.Import) and any(alias.name.split(".")[0] in banned for alias in node.names):
            wrong.append(place)
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in banned:
            wrong.append(place)
        if isinstance(node, ast.Call) and dotted(node.func) == "torch.load":
            safe = any(k.arg == "weights_only" and getattr(k.value, "value", None) is True for k in node.keywords)
            wrong += [] if safe else [place]
        if isinstance(node, ast.Call) and dotted(node.func) in ("yaml.load", "yaml.unsafe_load", "yaml.full_load"):
            wrong.append(place)
    assert wrong == []


def test_one_module_reads_the_environment() -> None:
    wrong = [
        place
        for place, node in nodes(CORE + PLUGINS)
        if dotted(node) in ("os.environ", "os.getenv", "os.environb") and not place.startswith("core/lsv/settings/")
    ]
    assert wrong == []


def test_files_and_functions_stay_small() -> None:
    long_files = [
        f"{file.relative_to(ROOT)}: {lines} lines"
        for file in CORE + PLUGINS
        if (lines := len(file.read_text(encoding="utf-8").splitlines())) > MAX_FILE
    ]
    long_functions = [
        f"{place} {node.name}: {lines} lines"
        for place, node in nodes(CORE + PLUGINS)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION
    ]
    assert long_files + long_functions == []


def test_no_catch_all_modules() -> None:
    names = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert [str(file) for file in CORE + PLUGINS if file.stem in names or file.parent.name in names] == []
