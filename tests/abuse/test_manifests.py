"""Containers of ``deploy/`` get no more rights than a server needs, and only their own machine reaches them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE = sorted(DEPLOY.glob("*compose.yaml"))
SCRIPTS = [DEPLOY / "docker" / "run.sh", DEPLOY / "swarm" / "node.sh", DEPLOY / "ray" / "cluster.sh"]
WRITABLE = {"/cache", "/dev/shm", "/tmp"}


def documents() -> Iterator[tuple[str, Any]]:
    """Every Kubernetes manifest by file."""
    for folder in ("kubernetes", "kuberay", "kserve"):
        for path in sorted((DEPLOY / folder).glob("*.yaml")):
            for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
                yield f"{folder}/{path.name}", document


def pods(found: Any) -> Iterator[dict[str, Any]]:
    """Every pod specification in a manifest, recognised by its containers."""
    if isinstance(found, dict):
        if "containers" in found:
            yield found
        for value in found.values():
            yield from pods(value)
    elif isinstance(found, list):
        for value in found:
            yield from pods(value)


PODS = [(name, pod, document) for name, document in documents() for pod in pods(document)]


def test_there_are_pods_to_look_at() -> None:
    assert {name.partition("/")[0] for name, _, _ in PODS} == {"kubernetes", "kuberay", "kserve"}
    assert len(PODS) >= 4


@pytest.mark.parametrize(("name", "pod", "document"), PODS, ids=[f"{one[0]}-{n}" for n, one in enumerate(PODS)])
def test_a_pod_has_no_more_rights_than_it_needs(name: str, pod: dict[str, Any], document: dict[str, Any]) -> None:
    check_pod(pod, token_elsewhere=document["kind"] == "ServingRuntime")


def check_pod(pod: dict[str, Any], *, token_elsewhere: bool = False) -> None:
    assert token_elsewhere or pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        given = {**pod.get("securityContext", {}), **container["securityContext"]}
        assert given["seccompProfile"] == {"type": "RuntimeDefault"}
        assert (given["runAsNonRoot"], given["allowPrivilegeEscalation"], given["readOnlyRootFilesystem"]) == (
            True,
            False,
            True,
        )
        assert given["capabilities"] == {"drop": ["ALL"]}
        assert {mount["mountPath"] for mount in container["volumeMounts"]} == WRITABLE
        assert not container["image"].endswith(":latest")
        assert re.search(r":[\w.]+$|@sha256:", container["image"]), container["image"]
    mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_the_service_of_kserve_has_no_token() -> None:
    (service,) = [document for _, document in documents() if document["kind"] == "InferenceService"]
    assert service["spec"]["predictor"]["automountServiceAccountToken"] is False


def test_a_pod_with_more_rights_is_detected() -> None:
    _, pod, _ = PODS[0]
    for lacking in ("automountServiceAccountToken", "securityContext"):
        with pytest.raises((AssertionError, KeyError)):
            check_pod({key: value for key, value in pod.items() if key != lacking})


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_services_of_compose_are_confined_and_on_this_machine(path: Path) -> None:
    services = yaml.safe_load(path.read_text(encoding="utf-8"))["services"]
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        for port in service.get("ports", ()):
            assert re.match(r"127\.0\.0\.1:|\$\{ADDRESS:-127\.0\.0\.1\}:", port), f"{name} listens for all: {port}"
        image = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", service["image"])
        assert re.search(r":[\w.]+$", image), image
        assert not image.endswith(":latest"), image
        assert service["image"].startswith("${"), f"{name}: no digest can be given"


def test_a_compose_server_writes_only_where_it_must_and_has_names() -> None:
    server = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]["lsv"]
    assert (server["read_only"], server["tmpfs"]) == (True, ["/tmp"])
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "compose.yaml").read_text(encoding="utf-8"))
    (target,) = scraped["scrape_configs"][0]["static_configs"][0]["targets"]
    assert server["environment"]["LSV_ALLOWED_HOSTS"] == f"${{ALLOWED_HOSTS:-{target.partition(':')[0]}}}"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_containers_of_scripts_are_confined_and_on_this_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    runs = [line for line in text.splitlines() if re.match(r"(exec )?docker run ", line)]
    assert runs
    for line in runs:
        assert "--cap-drop ALL --security-opt no-new-privileges" in line
        if "/cluster.sh" not in str(path) and "--network host" in line:
            assert "LSV_HOST=${ADDRESS:-127.0.0.1}" in line
    for published in re.findall(r"--publish (\S+)", text):
        assert published.startswith('"${ADDRESS:-127.0.0.1}:')


def test_an_image_of_the_chart_may_be_named_by_its_digest() -> None:
    template = (DEPLOY / "helm" / "lsv" / "templates" / "_pod.tpl").read_text(encoding="utf-8")
    assert "@{{ . }}{{ else }}:{{ .Values.image.tag }}" in template
