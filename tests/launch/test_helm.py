"""The chart in ``deploy/helm`` as Helm renders it: manifests that Kubernetes takes, around servers that start."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import Start

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "lsv"
# In a process of its own, as Helm's library brings Go's signal handlers and threads.
HELM = """
import json, sys, helm_python
path, values = sys.argv[1], json.loads(sys.argv[2])
with helm_python.Chart.load(path) as chart:
    rendered = chart.render(values, name="lsv", namespace="models")
print(json.dumps({"rendered": rendered, "lint": helm_python.lint(path, values, strict=True)}))
"""
FULL: dict[str, Any] = {
    "model": "org/x",
    "platform": "cuda",
    "args": ["-tp", "2", "--max-model-len", "4096"],
    "imagePullSecrets": [{"name": "registry"}],
    "resources": {"limits": {"nvidia.com/gpu": 2, "memory": "64Gi"}},
    "secret": {"apiKey": "a,b", "hfToken": "t"},
    "cache": {"accessModes": ["ReadWriteMany"], "storageClass": "shared"},
    "autoscaling": {"enabled": True, "maxReplicas": 100, "waiting": 2},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "podAnnotations": {"prometheus.io/scrape": "true"},
    "runtimeClassName": "nvidia",
    "env": [{"name": "LSV_LOG_LEVEL", "value": "DEBUG"}],
    "nodeSelector": {"pool": "cards"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
}
NODES: dict[str, Any] = {**FULL, "multiNode": {"enabled": True, "size": 4}}

Manifests = dict[str, dict[str, Any]]


def run(values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec("helm_python") is None:
        pytest.skip("helm-python-sdk is not installed")
    command = [sys.executable, "-c", HELM, str(CHART), json.dumps(values)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def render(values: dict[str, Any]) -> Manifests:
    """The manifests by kind; lint has nothing to say of them."""
    done = run(values)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert [one for one in answer["lint"]["messages"] if "icon" not in one["error"]] == []
    texts = (text for name, text in answer["rendered"].items() if name.endswith(".yaml"))
    return {one["kind"]: one for text in texts for one in yaml.safe_load_all(text) if one}


def pods(manifests: Manifests) -> list[dict[str, Any]]:
    """Templates of pods, the server's first."""
    if "Deployment" in manifests:
        return [manifests["Deployment"]["spec"]["template"]]
    group = manifests["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    return [group["leaderTemplate"], group["workerTemplate"]]


def server(manifests: Manifests) -> dict[str, Any]:
    found: dict[str, Any] = pods(manifests)[0]["spec"]["containers"][0]
    return found


@pytest.mark.parametrize("values", [{}, FULL, NODES], ids=["default", "full", "nodes"])
def test_manifests_follow_the_schemas_of_kubernetes(values: dict[str, Any]) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    manifests = render(values)
    templates = [
        {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {"name": "lsv", **pod["metadata"]}}
        for pod in pods(manifests)
    ]
    own = [one for one in manifests.values() if not one["apiVersion"].startswith(("leaderworkerset", "monitoring"))]
    for manifest in own + templates:
        assert validator.validate(manifest, validator.latest_version(), strict=True) is not None


@pytest.mark.parametrize("values", [{}, NODES], ids=["default", "nodes"])
def test_pods_have_no_more_rights_than_they_need(values: dict[str, Any]) -> None:
    for pod in (pod["spec"] for pod in pods(render(values))):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        given = container["securityContext"]
        assert (given["allowPrivilegeEscalation"], given["readOnlyRootFilesystem"]) == (False, True)
        assert given["capabilities"] == {"drop": ["ALL"]}
        assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/cache", "/dev/shm", "/tmp"}


def test_an_image_may_be_named_by_its_digest() -> None:
    digest = f"sha256:{'0' * 64}"
    assert server(render({"image": {"digest": digest}}))["image"] == f"lsv@{digest}"
    assert server(render({}))["image"] == "lsv:cpu"
    assert run({"image": {"digest": "sha256:short"}}).returncode != 0


def test_what_is_optional_is_left_out() -> None:
    assert set(render({})) == {"Deployment", "Service", "PersistentVolumeClaim"}
    bare = render({"cache": {"enabled": False}})
    assert set(bare) == {"Deployment", "Service"}
    assert pods(bare)[0]["spec"]["volumes"][-1] == {"name": "cache", "emptyDir": {}}


@pytest.mark.parametrize(
    ("values", "platform"), [({}, "cpu"), (FULL, "cuda"), (NODES, "cuda")], ids=["default", "full", "nodes"]
)
def test_the_server_starts(
    start: Start, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], platform: str
) -> None:
    monkeypatch.setattr("lsv_ray.plugin.is_installed", lambda: True)
    manifests = render(values)
    container = server(manifests)
    emulated = [] if platform == "cpu" else ["--emulate"]
    found = start(" ".join(["LSV_HOST=0.0.0.0 vllm serve", *container["args"], *emulated]))
    assert found.config.platform == platform
    assert found.settings["port"] == container["ports"][0]["containerPort"]
    assert found.settings["drain_timeout"] < pods(manifests)[0]["spec"]["terminationGracePeriodSeconds"]
    assert found.warnings == ""


def test_probes_ask_what_they_are_for() -> None:
    container = server(render({"probes": {"startupSeconds": 600, "deadSeconds": 30}}))
    startup, live = container["startupProbe"], container["livenessProbe"]
    assert (startup["httpGet"]["path"], startup["periodSeconds"] * startup["failureThreshold"]) == ("/ready", 600)
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert (live["httpGet"]["path"], live["periodSeconds"] * live["failureThreshold"]) == ("/live", 30)


def test_replicas_follow_what_waits() -> None:
    manifests = render(FULL)
    scaler = manifests["HorizontalPodAutoscaler"]["spec"]
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": manifests["Deployment"]["metadata"]["name"]}
    assert scaler["scaleTargetRef"] == target
    assert "replicas" not in manifests["Deployment"]["spec"], "an upgrade would undo what the autoscaler has done"
    rules = yaml.safe_load((CHART.parents[1] / "prometheus" / "adapter.yaml").read_text(encoding="utf-8"))
    (rule,) = rules["rules"]["custom"]
    assert scaler["metrics"][0]["pods"]["metric"]["name"] == rule["name"]["as"]
    assert rule["seriesQuery"].startswith("vllm:num_requests_waiting{")
    assert render(NODES)["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["kind"] == "LeaderWorkerSet"


def test_keys_come_from_a_secret() -> None:
    manifests = render(FULL)
    assert manifests["Secret"]["stringData"] == {"api-key": "a,b", "hf-token": "t"}
    name = manifests["Secret"]["metadata"]["name"]
    wanted = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in server(manifests)["env"] if "valueFrom" in one}
    assert wanted["LSV_API_KEY"] == {"name": name, "key": "api-key", "optional": True}
    assert set(wanted) == {"LSV_API_KEY", "LSV_ADMIN_API_KEY", "HF_TOKEN"}
    yours = render({"secret": {"existing": "mine", "apiKey": "left out"}})
    assert "Secret" not in yours
    assert server(yours)["env"][0]["valueFrom"]["secretKeyRef"]["name"] == "mine"


def test_what_selects_pods_finds_them() -> None:
    for values in (FULL, NODES):
        manifests = render(values)
        server_labels = pods(manifests)[0]["metadata"]["labels"].items()
        assert manifests["Service"]["spec"]["selector"].items() <= server_labels
        monitored = manifests["ServiceMonitor"]["spec"]["selector"]["matchLabels"].items()
        assert monitored <= manifests["Service"]["metadata"]["labels"].items()
    worker_labels = pods(manifests)[1]["metadata"]["labels"].items()
    assert not manifests["Service"]["spec"]["selector"].items() <= worker_labels
    guarded = manifests["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"].items()
    assert guarded <= server_labels
    assert guarded <= worker_labels


def test_the_pods_of_a_group_are_one_ray_cluster() -> None:
    manifests = render(NODES)
    leader, worker = (pod["spec"]["containers"][0] for pod in pods(manifests))
    assert leader["command"][2].endswith('exec lsv serve "$@"')
    assert "--distributed-executor-backend ray" in " ".join(leader["args"])
    assert "$LWS_LEADER_ADDRESS:6379" in worker["command"][2]
    assert "readinessProbe" not in worker
    assert manifests["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]["size"] == 4


@pytest.mark.parametrize("values", [{"modle": "x"}, {"platform": "tpu"}, {"multiNode": {"size": 1}}], ids=str)
def test_values_that_can_not_be_are_refused(values: dict[str, Any]) -> None:
    done = run(values)
    assert done.returncode != 0
    assert next(iter(values)) in done.stderr
