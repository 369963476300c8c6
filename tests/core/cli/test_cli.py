"""The ``lsv`` command: dispatch, help, exit codes, and the commands about plugins and the machine."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from lsv import __version__, hookimpl
from lsv.cli import main
from lsv.cli.context import CommandContext, choose_plugins
from lsv.offers import CommandOffer
from lsv.plugins import ESSENTIAL
from lsv.settings import Setting, options
from lsv_base.errors import ConfigError, PluginError
from lsv_doctor import command as doctor
from lsv_scaffold import command as new
from lsv_testing.plugins import plugins_of, write_distribution

BROKEN = "raise RuntimeError('boom')\n"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for variable in list(os.environ):
        if variable.startswith(("LSV_", "VLLM_", "OMP_")):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def context() -> CommandContext:
    """A context over a made-up plugin with one setting."""
    module = ModuleType("cat")
    module.api = 2  # type: ignore[attr-defined]
    module.lsv_settings = hookimpl(lambda: [Setting(name="cat.lives", type="int", default=9)])  # type: ignore[attr-defined]
    return CommandContext(plugins_of(cat=module), choose_plugins([]))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out == f"lsv {__version__}\n"


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert "usage: lsv <command> [options]" in printed
    assert all(f"\n  {command} " in printed for command in main.COMMANDS)


def test_no_command_is_an_error_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([]) == 2
    assert "usage:" in capsys.readouterr().out


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["serv"]) == 2
    assert capsys.readouterr().err == "error: there is no command 'serv'; did you mean serve?\n"


def test_errors_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["doctor", "--prt", "1"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "error: unknown option --prt; did you mean --port?\n"
    assert captured.out == ""


def test_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(arguments: list[str], context: CommandContext) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "run", stop)
    assert main.main(["doctor"]) == 130


def test_help_of_a_command_shows_defaults_and_variables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["doctor", "--help=all"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "--port INT port to listen on [default 8000; LSV_PORT]" in printed
    assert "-tp, --tensor-parallel-size INT" in printed
    assert "--platform, --device STR" in printed
    assert "VLLM_ATTENTION_BACKEND" in printed
    assert "Plugin cpu --cpu-threads INT" in printed


def test_help_alone_shows_what_matters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["serve", "--help"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") < 60
    assert all(f"--{name}" in printed for name in ("port", "api-key", "max-model-len", "quantization", "platform"))
    assert "--swap-space" not in printed
    assert "--help=all shows all of them" in printed
    assert "memory-and-kv-cache" in printed


def test_help_of_a_group_a_plugin_or_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    for subject, shown, hidden in (
        ("memory-and-kv-cache", "--block-size", "--port"),
        ("Scheduling", "--max-itl-ms", "--port"),
        ("cpu", "--cpu-threads", "--port"),
        ("block_size", "--block-size", "--kv-cache-dtype"),
    ):
        assert main.main(["serve", f"--help={subject}"]) == 0
        printed = capsys.readouterr().out
        assert shown in printed
        assert hidden not in printed
    assert main.main(["serve", "--help=scheduler"]) == 2
    assert "there is no such group or option; did you mean scheduling?" in capsys.readouterr().err


def test_every_core_setting_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert not [setting.name for setting in options.CORE if not setting.help or not setting.group]


def test_settings_of_a_scope(context: CommandContext) -> None:
    assert "port" in context.settings([], scope="serve")
    assert "cat.lives" in context.settings([], scope="engine")
    assert "port" not in context.settings([], scope="engine")
    assert set(context.settings([], scope="none")) == {setting.name for setting in options.COMMON}


def test_the_model_is_the_first_plain_argument(context: CommandContext) -> None:
    settings = context.settings(["some/model", "--seed", "1"])
    assert (settings["model"], settings.source("model")) == ("some/model", "argument")
    assert context.settings(["--model", "m"])["model"] == "m"
    assert context.settings(["m", "--model", "m"])["model"] == "m"
    with pytest.raises(ConfigError, match="two models are named, a and --model b"):
        context.settings(["a", "--model", "b"])
    with pytest.raises(ConfigError, match="unexpected argument 'b'"):
        context.settings(["a", "b"])
    with pytest.raises(ConfigError, match="unexpected argument 'a'"):
        context.settings(["a"], scope="none")
    assert context.settings(["a"], scope="none", positional=1).positional == ("a",)


def test_what_decides_about_plugins_must_be_written_in_full(context: CommandContext) -> None:
    with pytest.raises(ConfigError, match="write --no-plugin in full"):
        context.settings(["--no-pl", "api"])


def test_plugins_are_chosen_before_other_flags_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("no-plugin: [demo]\ncpu-threads: 1\n")
    assert choose_plugins(["M", "--cpu-threads", "2", "--no_plugin=api", "x"])["no_plugin"] == ("api",)
    assert choose_plugins(["--config", str(file)])["no_plugin"] == ("demo",)
    monkeypatch.setenv("LSV_PLUGINS", "cpu")
    assert choose_plugins([])["plugins"] == ("cpu",)
    context = CommandContext.open(["--config", str(file), "--plugins", "cpu,demo"])
    assert set(context.plugins.names) == {*ESSENTIAL, "cpu"}


def test_plugins_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plugins", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    by_name = {plugin["name"]: plugin for plugin in found["plugins"]}
    assert found["broken"] == []
    assert by_name["core"]["offers"]["scheduling policy"] == ["fcfs", "priority"]
    assert "cpu.threads" in by_name["cpu"]["offers"]["setting"]
    assert main.main(["plugins", "--offers"]) == 0
    assert "scheduling policy: fcfs, priority" in capsys.readouterr().out


def test_broken_plugins_are_shown_and_warned_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_distribution(tmp_path, "wreck", BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main.main(["plugins"]) == 0
    captured = capsys.readouterr()
    assert "broken: wreck (lsv-wreck 1.0): RuntimeError: boom" in captured.out
    assert captured.err == ""
    assert main.main(["new", "--help"]) == 0
    assert capsys.readouterr().err == "warning: plugin wreck (lsv-wreck 1.0): RuntimeError: boom\n"
    assert main.main(["doctor"]) == 1
    assert "--no-plugin wreck" in " ".join(capsys.readouterr().out.split())
    assert main.main(["vanished"]) == 2
    assert "wreck" in capsys.readouterr().err.splitlines()[-1]
    assert main.main(["doctor", "--plugins", "wreck"]) == 2
    assert capsys.readouterr().err.startswith("error: plugin wreck")


def test_plugin_commands_and_built_in_ones(context: CommandContext) -> None:
    module = ModuleType("dog")
    module.api = 2  # type: ignore[attr-defined]
    offers = [CommandOffer("bark", "json:dumps", "make noise"), CommandOffer("serve", "json:loads", "never")]
    module.lsv_commands = hookimpl(lambda: offers)  # type: ignore[attr-defined]
    other = CommandContext(plugins_of(dog=module), choose_plugins([]))
    assert main._summaries(other)["bark"] == "make noise"
    assert main._summaries(other)["serve"] == main.COMMANDS["serve"][1]
    bark = main._find("bark", other)
    assert bark.__wrapped__ is json.dumps
    with pytest.raises(PluginError, match="command bark of plugin dog failed: TypeError"):
        bark([], other)


@pytest.mark.parametrize("name", ["Bad", "9x", "a_b", "a--b", "../a", ""])
def test_names_of_new_plugins(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lower case with dashes"):
        new.write_plugin(name, "model", tmp_path)


def test_a_new_plugin_overwrites_nothing(tmp_path: Path) -> None:
    folder = new.write_plugin("my-model", "model", tmp_path)
    assert sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()) == [
        "README.md",
        "lsv_my_model/__init__.py",
        "lsv_my_model/model.py",
        "lsv_my_model/plugin.py",
        "pyproject.toml",
        "tests/test_model.py",
    ]
    with pytest.raises(ConfigError, match="exists already"):
        new.write_plugin("my-model", "model", tmp_path)


@pytest.mark.parametrize("arguments", [[], ["plugin"], ["plugin", "x"], ["thing", "x", "--kind", "model"]])
def test_new_needs_a_name_and_a_kind(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["new", *arguments]) == 2
    assert "use lsv new plugin NAME --kind model|quantizer|platform" in capsys.readouterr().err
