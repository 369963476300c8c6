"""Files and modules that the documents for developers name are there."""

import json
import re
from pathlib import Path

import pytest

from lsv_quant.plugin import lsv_quantizers

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("docs/developing.md", "docs/glossary.md", "CHANGELOG.md")
PACKAGES = {
    "lsv": "core",
    "lsv_base": "core",
    "lsv_runtime": "plugins/runtime",
    "lsv_offline": "plugins/offline",
    "lsv_testing": "plugins/testing",
}
LIBRARIES = [ROOT / folder / package for package, folder in PACKAGES.items()]
FOLDERS = "core|plugins|webui|tests|benchmarks|tools|docs|deploy"


def texts() -> list[tuple[str, str]]:
    """What each says about the tree as it is: of a changelog its latest part."""
    return [
        (name, "## ".join(read(name).split("\n## ")[: 2 if name == "CHANGELOG.md" else None])) for name in DOCUMENTS
    ]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def missing_files(text: str) -> list[str]:
    """Paths in code type that begin with a folder of the tree."""
    named = re.findall(rf"`((?:{FOLDERS})/[\w./-]*)`", text)
    return [path for path in named if not (ROOT / path).exists()]


def missing_modules(text: str) -> list[str]:
    """Dotted names of core and of the libraries; a last part that is not a module may be a name in one."""
    # what stands in the first column of a table of moved paths is gone
    kept = re.sub(r"^ *\|[^|]*\| `lsv", "`lsv", text, flags=re.MULTILINE)
    return [name for name in re.findall(rf"`((?:{'|'.join(PACKAGES)})(?:\.\w+)+)`", kept) if not exists(name)]


def exists(dotted: str) -> bool:
    package, *rest = dotted.split(".")
    path = ROOT.joinpath(PACKAGES[package], package, *rest)
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True
    return re.search(rf"\b{path.name}\b", source(path.parent)) is not None


def source(path: Path) -> str:
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file.read_text(encoding="utf-8") if file.is_file() else ""


@pytest.mark.parametrize(("name", "text"), texts(), ids=DOCUMENTS)
def test_what_is_named_exists(name: str, text: str) -> None:
    assert missing_files(text) + missing_modules(text) == []


def test_what_is_gone_is_seen() -> None:
    assert missing_files("`plugins/runtime/lsv_runtime/ops.py`, `core/lsv/gone.py`, `tests/gone/`") == [
        "core/lsv/gone.py",
        "tests/gone/",
    ]
    assert missing_modules("`lsv.kv.blocks`, `lsv.kv`, `lsv.gone`, `lsv.kv.gone`") == ["lsv.gone", "lsv.kv.gone"]
    assert missing_modules("| `lsv.gone` | `lsv_runtime.weights.gone` |") == ["lsv_runtime.weights.gone"]


def test_architecture_names_modules_of_core_that_exist() -> None:
    named = re.findall(r"`([\w/]+\.py)`", read("docs/architecture.md"))
    assert len(named) > 10
    assert [path for path in named if not any((base / path).is_file() for base in (*LIBRARIES, ROOT))] == []


@pytest.mark.parametrize("name", ["docs/glossary.md"])
def test_words_are_in_order(name: str) -> None:
    words = re.findall(r"^\| \*\*([^*]+)\*\*", read(name), flags=re.MULTILINE)
    assert len(words) >= 30
    assert words == sorted(words, key=str.lower)


def install_by_name(text: str) -> list[str]:
    """Commands that would install lsv from a package index, which has no release."""
    return re.findall(r"pip install (?:-\S+ )*[\"']?lsv\b[^`\n]*", text)


def test_documents_install_from_a_clone_until_there_is_a_release() -> None:
    assert "There is no release yet" in read("CHANGELOG.md")
    pages = (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("plugins/*/README.md"))
    code = (*ROOT.glob("core/**/*.py"), *ROOT.glob("plugins/**/*.py"), *ROOT.glob("webui/**/*.py"))
    assert len(pages) > 30
    assert {str(path.relative_to(ROOT)): found for path in (*pages, *code)
            if (found := install_by_name(path.read_text(encoding="utf-8")))} == {}  # fmt: skip


def test_an_installation_by_name_is_seen() -> None:
    assert install_by_name("`pip install lsv`, `pip install 'lsv[ray]'`") == [
        "pip install lsv",
        "pip install 'lsv[ray]'",
    ]
    assert install_by_name("pip install . && pip install -e '.[ray]'") == []


def test_ratios_of_real_weights_are_those_kept() -> None:
    """After a change: make test-real RENEW_GOLDEN=1"""
    kept = json.loads(read("tests/real/golden/formats.json"))
    table = read("docs/quantization.md").partition("<!-- real weights: begin -->")[2]
    table = table.partition("<!-- real weights: end -->")[0]
    fitted = json.loads(read("tests/real/golden/fitted.json"))
    shown = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+|-) \|$", table, re.MULTILINE)
    assert shown == [
        (name, f"{ratio:.3f}", f"{fitted[name]:.3f}" if name in fitted else "-") for name, ratio in kept.items()
    ]
    costs = {offer.name: offer.costs for offer in lsv_quantizers() if offer.name in kept}
    assert costs == {name: round((ratio - 1) * 100) if ratio > 1.05 else 0 for name, ratio in kept.items()}
