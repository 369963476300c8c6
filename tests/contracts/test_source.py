"""What may not stand in the source, and how long files, classes and functions may be."""

import ast
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = sorted(file for folder in ("core", "plugins/runtime") for file in (ROOT / folder).rglob("*.py"))
"""Also the libraries below and above core: its rules hold for them, too."""
PLUGINS = sorted(
    file for folder in ("plugins", "webui", "tools") for file in (ROOT / folder).rglob("*.py") if file not in CORE
)
PLATFORMS = {"cpu", "xpu", "hpu", "cuda", "rocm", "tpu", "triton"}
DEVICE_MODULES = {f"torch.{name}" for name in PLATFORMS - {"cpu"}}
BANNED = {"eval", "exec", "pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "multiprocessing"}
MAX_FILE, MAX_FUNCTION = 600, 80
MAX_CLASS, MAX_METHODS = 300, 25
LONG_CLASSES = {
    "Scheduler": "each method is one thing that happens to requests, and all change the same books",
    "KVManager": "likewise, for blocks",
    "ReplicaSet": "until the cluster is a plugin",
    "SocketClient": "until its connection is a class of its own",
}
"""Classes of core that are longer, each with the reason."""


Rule = Callable[[ast.AST], bool]


def places(files: list[Path], rules: Mapping[str, Rule]) -> dict[str, list[str]]:
    """The violations by rule. One walk covers all rules, because parsing takes most of the time."""
    found: dict[str, list[str]] = {name: [] for name in rules}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for name, breaks in rules.items():
                if breaks(node):
                    found[name].append(f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}")
    return found


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of names and attributes, "" of anything else; ``ast.unparse`` is slow."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def asks_a_device_module(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and dotted(node) in DEVICE_MODULES


def compares_a_platform_name(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        return any(isinstance(c, ast.Constant) and c.value in PLATFORMS for side in sides for c in ast.walk(side))
    return isinstance(node, ast.MatchValue) and getattr(node.value, "value", None) in PLATFORMS


def runs_what_it_reads(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] in BANNED for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return str(node.module).split(".")[0] in BANNED
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name) and node.func.id in BANNED:
        return True
    if dotted(node.func) == "torch.load":
        return not any(k.arg == "weights_only" and getattr(k.value, "value", None) is True for k in node.keywords)
    return dotted(node.func) in ("yaml.load", "yaml.unsafe_load", "yaml.full_load")


def reads_the_environment(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and dotted(node) in ("os.environ", "os.getenv", "os.environb")


def is_a_long_function(node: ast.AST) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION


def is_a_long_class(node: ast.AST) -> bool:
    if not isinstance(node, ast.ClassDef):
        return False
    methods = [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
    return (node.end_lineno or 0) - node.lineno + 1 > MAX_CLASS or len(methods) > MAX_METHODS


@cache
def in_core() -> dict[str, list[str]]:
    return places(CORE, {"device module": asks_a_device_module, "platform name": compares_a_platform_name})


@cache
def everywhere() -> dict[str, list[str]]:
    rules = {"runs": runs_what_it_reads, "environment": reads_the_environment, "long": is_a_long_function}
    return places(CORE + PLUGINS, rules)


def test_core_asks_no_device_module() -> None:
    assert in_core()["device module"] == []


def test_core_compares_no_platform_name() -> None:
    assert in_core()["platform name"] == []


def test_nothing_that_runs_what_it_reads() -> None:
    assert everywhere()["runs"] == []


def test_settings_alone_read_the_environment() -> None:
    """Two more places copy it: the harmless variables for confined processes, all of them for forked ones."""
    allowed = ("core/lsv/settings/", "core/lsv_base/processes/environment.py", "tools/suite/suite/zygote/")
    assert [place for place in everywhere()["environment"] if not place.startswith(allowed)] == []


def test_files_and_functions_stay_small() -> None:
    long_files = [
        f"{file.relative_to(ROOT)}: {lines} lines"
        for file in CORE + PLUGINS
        if (lines := len(file.read_text(encoding="utf-8").splitlines())) > MAX_FILE
    ]
    assert long_files + everywhere()["long"] == []


def test_classes_of_core_stay_small() -> None:
    found = {
        node.name
        for file in CORE
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and is_a_long_class(node)
    }
    assert found == set(LONG_CLASSES)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (asks_a_device_module, "torch.cuda.synchronize()"),
        (compares_a_platform_name, "name == 'cuda'"),
        (runs_what_it_reads, "import pickle"),
        (runs_what_it_reads, "from marshal import loads"),
        (runs_what_it_reads, "eval(text)"),
        (runs_what_it_reads, "torch.load(file, weights_only=False)"),
        (runs_what_it_reads, "yaml.load(text)"),
        (reads_the_environment, "os.environ['HOME']"),
        (is_a_long_function, "def f():\n" + "    x = 1\n" * MAX_FUNCTION),
    ],
)
def test_rules_see_what_they_forbid(rule: Rule, text: str) -> None:
    assert any(map(rule, ast.walk(ast.parse(text))))
    assert not any(map(rule, ast.walk(ast.parse("torch.load(file, weights_only=True)\nx = 'cpu'"))))


def test_no_catch_all_modules() -> None:
    names = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert [str(file) for file in CORE + PLUGINS if file.stem in names or file.parent.name in names] == []
