"""Every kind of broken plugin beside a good one: each is named, and none disturbs the rest."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lsv_testing.plugins import write_distribution

START = "from lsv import hookimpl\nfrom lsv.offers import ModelOffer\napi = 2\n@hookimpl\ndef lsv_models():\n"
BROKEN = {
    "import-error": ("import not_installed_anywhere\n", "not_installed_anywhere"),
    "unknown-hook": (
        "from lsv import hookimpl\napi = 2\n@hookimpl\ndef lsv_modles(): ...\n",
        "did you mean lsv_models",
    ),
    "unmarked-hook": ("api = 2\ndef lsv_models(): ...\n", "no @lsv.hookimpl mark"),
    "wrong-arguments": (START.replace("()", "(config)") + "    return ()\n", "takes no arguments"),
    "wrong-api": ("api = 7\n", "api 7"),
    "no-api": ("", "no api number"),
    "raising-hook": (START + "    raise RuntimeError('boom')\n", "boom"),
    "wrong-type": (START + "    yield 'llama'\n", "must yield ModelOffer"),
    "ends-process": ("raise SystemExit(0)\n", "tried to end the process"),
    "stale": (None, "stale"),
}
DUPLICATE = START + "    yield ModelOffer('sample', ('TwiceForCausalLM',), 'x:y')\n"


@pytest.fixture
def wrecks(tmp_path: Path) -> Path:
    for name, (source, _) in BROKEN.items():
        write_distribution(tmp_path, name, source)
    return tmp_path


def test_all_are_named_and_the_good_one_works(sample: Path, wrecks: Path, run: Callable) -> None:
    found = json.loads(run("-m", "lsv", "plugins", "--json", path=(sample, wrecks)).stdout)
    reasons = {broken["name"]: broken for broken in found["broken"]}
    assert set(reasons) == set(BROKEN)
    for name, (_, words) in BROKEN.items():
        assert words in reasons[name]["reason"]
        assert (reasons[name]["distribution"], reasons[name]["version"]) == (f"lsv-{name}", "1.0")
    assert [name for name in reasons if reasons[name]["stale"]] == ["stale"]
    greeting = run("-m", "lsv", "greet", "you", path=(sample, wrecks))
    assert greeting.stdout == "hello, you (default)\n"
    assert greeting.returncode == 0
    warned = [line for line in greeting.stderr.splitlines() if line.startswith("warning: plugin ")]
    assert len(warned) == len(BROKEN) - 2, "all but the two whose hook for models nobody asked"


@pytest.mark.parametrize("name", ["import-error", "wrong-api", "stale"])
def test_named_explicitly_it_is_an_error(name: str, wrecks: Path, run: Callable) -> None:
    done = run("-m", "lsv", "models", "--plugins", name, path=(wrecks,))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: plugin {name} (lsv-{name} 1.0): ")


DUPLICATES = """
from lsv_base.errors import PluginError
from lsv.offers import ModelOffer
from lsv.plugins import load
catalog = load().catalog
print(catalog.find(ModelOffer, "llama").name)
try:
    catalog.find(ModelOffer, "sample")
except PluginError as error:
    print(error)
"""


def test_a_duplicate_name_is_an_error_when_asked_for(sample: Path, tmp_path: Path, run: Callable) -> None:
    write_distribution(tmp_path, "twice", DUPLICATE)
    done = run("-c", DUPLICATES, path=(sample, tmp_path))
    first, second = done.stdout.splitlines()
    assert first == "llama"
    assert second.startswith("model 'sample' is offered more than once, by sample and twice")
