"""No regular expression from a file or a request reaches an unlimited backtracking matcher.

``re`` gets literals, or combinations of literals of the same module. All other patterns are listed with their origin.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(file for room in ("core", "plugins", "webui", "deploy") for file in (ROOT / room).rglob("*.py"))
MODULES = {"re", "regex", "re2"}
CALLS = {"compile", "match", "fullmatch", "search", "sub", "subn", "split", "splititer", "findall", "finditer"}
OUR_OWN = {
    "core/lsv_base/untrusted/patterns.py": "compiles with RE2, or with regex and a time limit",
    "plugins/runtime/lsv_runtime/weights/fill.py": "Filler.ignores: attributes of model classes",
    "plugins/runtime/lsv_runtime/weights/naming.py": "rules of model classes",
    "plugins/runtime/lsv_runtime/weights/stacks.py": "Stack.name: an attribute of model classes",
    "plugins/bench/lsv_bench/machine.py": "names of the same module",
    "plugins/doctor/lsv_doctor/models/shapes.py": "a table of the same module",
    "plugins/doctor/lsv_doctor/models/wrappers/towers.py": "a table of the same module",
    "plugins/doctor/lsv_doctor/secrets.py": "secrets of the environment, escaped",
    "plugins/guidance/lsv_guidance/structural.py": "special tokens, escaped",
    "plugins/parsers/lsv_parsers/source.py": "marks of a parser, escaped",
    "plugins/parsers/lsv_parsers/values.py": "two quotes",
    "plugins/xpu/lsv_xpu/devices_table.py": "a table of the same module",
    "plugins/xpu/lsv_xpu/oneccl.py": "a table of the same module",
}
"""Modules that match patterns other than literals, with the origin of these patterns."""


def made_up(file: Path) -> Iterator[int]:
    """The lines of a module with a pattern that is not a literal."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    constants: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    constants[target.id] = node.value

    def literal(node: ast.expr | ast.slice) -> bool:
        match node:
            case ast.Constant():
                return True
            case ast.JoinedStr():
                return all(literal(part) for part in node.values)
            case ast.FormattedValue():
                return literal(node.value)
            case ast.BinOp():
                return literal(node.left) and literal(node.right)
            case ast.Name() if node.id in constants:
                return literal(constants[node.id])
            case ast.Call(func=ast.Attribute(attr="join"), args=[ast.Name() as parts]) if parts.id in constants:
                return literal(constants[parts.id])
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr="escape")):
                return True
            case ast.Tuple() | ast.List():
                return all(literal(part) for part in node.elts)
        return False

    names = {alias.asname or alias.name: alias.name for node in ast.walk(tree) if isinstance(node, ast.Import)
             for alias in node.names if alias.name in MODULES}  # fmt: skip
    taken = {alias.asname or alias.name for node in ast.walk(tree)
             if isinstance(node, ast.ImportFrom) and node.module in MODULES for alias in node.names}  # fmt: skip
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Attribute(value=ast.Name(id=module), attr=call) if module in names and call in CALLS:
                pass
            case ast.Name(id=call) if call in taken and call in CALLS:
                pass
            case _:
                continue
        given = node.args[0] if node.args else next((one.value for one in node.keywords if one.arg == "pattern"), None)
        if given is None or not literal(given):
            yield node.lineno


def test_no_pattern_of_others_reaches_a_backtracking_matcher() -> None:
    found = {str(file.relative_to(ROOT)): list(made_up(file)) for file in SOURCES}
    found = {file: lines for file, lines in found.items() if lines}
    strangers = {file: lines for file, lines in found.items() if file not in OUR_OWN}
    assert not strangers, "take patterns of files and clients from lsv_base.untrusted; list the source's own here"
    assert not OUR_OWN.keys() - found.keys(), "these do not belong in the list any more"


@pytest.mark.parametrize(
    "source",
    [
        "import re\ndef f(config, name):\n    return re.match(config['pattern'], name)\n",
        "import re as expressions\nfound = expressions.compile(open('a').read())\n",
        "from re import fullmatch\ndef f(pattern):\n    return fullmatch(pattern, 'a')\n",
        "import regex\ndef f(pattern):\n    return regex.search(rf'^{pattern}$', 'a')\n",
        "import re\ndef f(key):\n    return re.sub(pattern=key, repl='', string='a')\n",
    ],
)
def test_the_rule_sees_a_planted_pattern(tmp_path: Path, source: str) -> None:
    (tmp_path / "planted.py").write_text(source)
    assert list(made_up(tmp_path / "planted.py"))


def test_the_rule_lets_literals_pass(tmp_path: Path) -> None:
    source = "import re\n_A = r'a'\n_B = re.compile(rf'{_A}|b')\n_C = re.compile(_A + 'c')\n_D = re.escape(_A)\n"
    (tmp_path / "own.py").write_text(source)
    assert not list(made_up(tmp_path / "own.py"))
