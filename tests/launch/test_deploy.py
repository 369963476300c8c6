"""What is in ``deploy/`` against the schemas it is for, and its command lines against lsv."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import Start

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
MANIFESTS = sorted(path for path in (DEPLOY / "kubernetes").glob("*.yaml") if path.stem != "kustomization")


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def container() -> dict[str, Any]:
    found: dict[str, Any] = read(DEPLOY / "kubernetes" / "deployment.yaml")["spec"]["template"]["spec"]["containers"][0]
    return found


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifests_follow_the_schemas_of_kubernetes(path: Path) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    assert validator.validate(read(path), validator.latest_version(), strict=True) is not None


def test_all_manifests_are_applied() -> None:
    assert sorted(read(DEPLOY / "kubernetes" / "kustomization.yaml")["resources"]) == [path.name for path in MANIFESTS]


def test_the_dockerfile_is_sound() -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}")
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([hadolint, DEPLOY / "docker" / "Dockerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


BAKE = (DEPLOY / "docker" / "docker-bake.hcl").read_text(encoding="utf-8")
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text(encoding="utf-8")


@pytest.mark.row("F-913", "F-916", "F-917", "F-920")
def test_every_platform_has_an_image() -> None:
    targets = dict(re.findall(r'^target "(\w+)" \{\n(.*?)^\}', BAKE, re.MULTILINE | re.DOTALL))
    assert sorted(targets) == ["cpu", "cuda", "hpu", "lsv", "rocm", "xpu"]
    taken = set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))
    assert set(re.findall(r"\b([A-Z]+) += ", " ".join(targets.values()))) <= taken
    assert "intel/deep-learning-essentials" in targets["xpu"]
    for name, wheels in {"cuda": "cu130", "xpu": "xpu", "rocm": "rocm7.1"}.items():
        assert f"whl/{wheels}" in targets[name], name


@pytest.mark.row("F-920")
@pytest.mark.parametrize(("manager", "compiler"), [("apt-get", "g++"), ("dnf", "gcc-c++")])
def test_a_base_may_be_of_debians_or_red_hats_kind(manager: str, compiler: str, tmp_path: Path) -> None:
    """The instruction itself, with a package manager that writes down what it is asked."""
    (instruction,) = re.findall(r"^RUN (if command -v apt-get.*?^    fi)$", DOCKERFILE, re.MULTILINE | re.DOTALL)
    folder, asked = tmp_path / "bin", tmp_path / "asked"
    folder.mkdir()
    for name in (manager, "rm"):  # rm would empty the lists of packages of this machine
        (folder / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {asked}\n')
        (folder / name).chmod(0o755)
    variables = {"PATH": str(folder), "PACKAGES": "one two"}
    subprocess.run(["/bin/sh", "-ec", instruction], env=variables, check=True, timeout=60)
    lines = asked.read_text().splitlines()
    (installed,) = [line for line in lines if f"{manager} install" in line]
    assert installed.endswith(" one two")
    assert f" {compiler} " in installed
    assert not {"apt-get", "dnf"} - {manager} & set(" ".join(lines).split())


def test_what_an_image_installs_is_there() -> None:
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)", DOCKERFILE, re.MULTILINE)
    assert set(extras.split(",")) | {"ray"} <= set(project["optional-dependencies"])
    (made,) = re.findall(r'^ENTRYPOINT \["(\w+)", "serve"\]', DOCKERFILE, re.MULTILINE)
    assert made in project["scripts"]


@pytest.mark.row("F-913", "F-916")
def test_the_container_of_an_image_starts(start: Start) -> None:
    variables = " ".join(re.findall(r"\b(LSV_\w+=\S+)", DOCKERFILE))
    launched = start(f"{variables} vllm serve org/x")
    assert launched.settings["host"] == "0.0.0.0"
    assert f"EXPOSE {launched.settings['port']}\n" in DOCKERFILE


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False), (None, False)])
def test_the_health_check_of_an_image(status: int | None, healthy: bool) -> None:
    class Live(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/live" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    (words,) = re.findall(r"^HEALTHCHECK .*\n +CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    _, flag, code = json.loads(words)
    with HTTPServer(("127.0.0.1", 0), Live) as server:
        if status is not None:
            threading.Thread(target=server.handle_request, daemon=True).start()
        else:
            server.server_close()
        done = subprocess.run(
            [sys.executable, flag, code], env={**os.environ, "LSV_PORT": str(server.server_port)}, capture_output=True,
            timeout=20, check=False,
        )  # fmt: skip
    assert (done.returncode == 0) is healthy, done.stderr


def test_the_container_of_kubernetes_starts(start: Start) -> None:
    launched = start(" ".join(["VLLM_HOST_IP=0.0.0.0 vllm serve", *container()["args"]]))
    assert launched.settings["port"] == container()["ports"][0]["containerPort"]
    grace = read(DEPLOY / "kubernetes" / "deployment.yaml")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert launched.settings["drain_timeout"] < grace


def test_the_services_of_compose_start(start: Start) -> None:
    services = read(DEPLOY / "compose.yaml")["services"]
    command = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in services["lsv"]["command"]]
    launched = start(" ".join(["LSV_API_KEY= LSV_HOST=0.0.0.0 LSV_ALLOWED_HOSTS=lsv vllm serve", *command]))
    assert (launched.settings["host"], launched.settings["webui.enabled"], launched.settings["api_key"]) == (
        "0.0.0.0",
        True,
        (),
    )
    assert launched.settings["allowed_hosts"] == ("lsv",)
    scraped = read(DEPLOY / "prometheus" / "compose.yaml")["scrape_configs"][0]["static_configs"][0]["targets"]
    assert scraped == [f"lsv:{launched.settings['port']}"]
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in ("cache", "./models") or (DEPLOY / source).exists(), source


def test_the_unit_of_systemd_starts(start: Start) -> None:
    unit = (DEPLOY / "systemd" / "lsv.service").read_text()
    model = re.search(r"MODEL=(\S+)", unit)
    line = re.search(r"^ExecStart=/opt/lsv/bin/lsv (.*)$", unit, re.MULTILINE)
    assert model is not None
    assert line is not None
    start(f"vllm {line[1].replace('${MODEL}', model[1])}")
