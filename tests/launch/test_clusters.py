"""What ``deploy/`` has for clusters: pods that Kubernetes takes, scripts that do what they say, servers that start."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import Start

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SLURM, SWARM = DEPLOY / "slurm" / "lsv.sbatch", DEPLOY / "swarm" / "node.sh"
RECORD = '#!/bin/sh\n(basename "$0"; for word in "$@"; do printf "%s\\n" "$word"; done; echo .) >> "$RECORD"\n'


def read(name: str) -> dict[str, dict[str, Any]]:
    """The documents of a file, by kind."""
    documents = yaml.safe_load_all((DEPLOY / name / "lsv.yaml").read_text(encoding="utf-8"))
    return {one.get("kind", ""): one for one in documents}


def pods(name: str) -> list[dict[str, Any]]:
    """Specs of the pods of a file."""
    found = read(name)
    if name == "kserve":
        return [{key: found["ServingRuntime"]["spec"][key] for key in ("containers", "volumes")}]
    cluster = found["RayCluster"]["spec"]
    return [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if Ray were installed."""
    monkeypatch.setattr("lsv_ray.plugin.is_installed", lambda: True)


class Commands:
    """Runs scripts among commands that do nothing but note how they were called."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._record = folder / "record"

    def add(self, name: str, text: str = RECORD) -> None:
        (self._folder / name).write_text(text)
        (self._folder / name).chmod(0o755)

    def run(self, words: Sequence[object], **variables: str) -> list[list[str]]:
        """The calls, each of a name and its words."""
        self._record.write_text("")
        path = f"{self._folder}{os.pathsep}{os.environ['PATH']}"
        environment = {"PATH": path, "RECORD": str(self._record), "LSV_BIN": str(self._folder), **variables}
        subprocess.run([str(word) for word in words], env=environment, check=True, capture_output=True, timeout=30)
        return [call.splitlines() for call in self._record.read_text().split("\n.\n") if call]


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    folder = tmp_path / "bin"
    folder.mkdir()
    found = Commands(folder)
    for name in ("ray", "lsv", "docker"):
        found.add(name)
    return found


def line(words: Sequence[str], variables: Mapping[str, str] | None = None) -> str:
    return shlex.join([f"{name}={value}" for name, value in (variables or {}).items()] + ["vllm", "serve", *words])


@pytest.mark.row("F-925")
@pytest.mark.parametrize("name", ["kserve", "kuberay"])
def test_pods_follow_the_schemas_of_kubernetes(name: str) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    manifests = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec} for spec in pods(name)]
    for manifest in manifests + [one for kind, one in read(name).items() if kind in ("Service", "NetworkPolicy")]:
        assert validator.validate(manifest, validator.latest_version(), strict=True) is not None


@pytest.mark.row("F-925")
def test_the_runtime_of_kserve_starts(start: Start) -> None:
    (spec,) = pods("kserve")
    container = spec["containers"][0]
    filled = {"{{.Name}}": "qwen3", "/mnt/models": "org/x"}
    words = [filled.get(word, word) for word in container["args"]]
    found = start(line(words, {"LSV_HOST": "0.0.0.0"}))
    assert (found.config.served_names, found.warnings) == (("qwen3",), "")
    assert found.settings["port"] == container["ports"][0]["containerPort"]
    service = read("kserve")["InferenceService"]
    assert service["spec"]["predictor"]["model"]["modelFormat"]["name"] == "lsv"
    assert f'model_name="{service["metadata"]["name"]}"' in str(service["spec"]["predictor"]["autoScaling"])


@pytest.mark.usefixtures("ray")
def test_the_head_of_kuberay_starts(start: Start) -> None:
    head, worker = (spec["containers"][0] for spec in pods("kuberay"))
    found = start(line(head["args"], {"LSV_HOST": "0.0.0.0"}), platform="cuda")
    assert (found.config.executor, found.settings["port"]) == ("ray", head["ports"][0]["containerPort"])
    topology, cards = found.config.topology, head["resources"]["limits"]["nvidia.com/gpu"]
    assert topology.ranks == cards * (1 + read("kuberay")["RayCluster"]["spec"]["workerGroupSpecs"][0]["replicas"])
    port = worker["livenessProbe"]["tcpSocket"]["port"]
    start_of_worker = read("kuberay")["RayCluster"]["spec"]["workerGroupSpecs"][0]["rayStartParams"]
    assert start_of_worker["node-manager-port"] == str(port)


@pytest.mark.row("F-924")
def test_the_task_of_skypilot_starts(start: Start) -> None:
    task = read("skypilot")[""]
    run = str(task["run"]).replace('"$SKYPILOT_NUM_GPUS_PER_NODE"', "2").replace('"$MODEL"', task["envs"]["MODEL"])
    found = start(run.replace("~/lsv/bin/lsv", "vllm"), platform="cuda")
    assert (found.config.topology.tensor, found.settings["port"]) == (2, task["resources"]["ports"])
    assert task["service"]["readiness_probe"]["path"] == "/ready"
    assert set(task["secrets"]) == {"HF_TOKEN", "LSV_API_KEY"}


@pytest.mark.row("F-591", "F-598")
@pytest.mark.usefixtures("ray")
def test_the_job_of_slurm_starts(start: Start, commands: Commands) -> None:
    commands.add("scontrol", "#!/bin/sh\nprintf 'n7\\nn8\\n'\n")
    # Runs what each task runs, as the two nodes would.
    commands.add("srun", '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nfor SLURM_NODEID in 0 1; do\n'
                 '  export SLURM_NODEID; "$@" || exit 1\ndone\n')  # fmt: skip
    job = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[7-8]", "SLURM_GPUS_ON_NODE": "4"}
    head, server, check, worker = commands.run(["bash", SLURM, "org/x", "--max-model-len", "4096"], **job)
    assert head[:4] == ["ray", "start", "--head", "--port=6379"]
    assert check == ["ray", "health-check", "--address", "n7:6379"]
    assert worker[:4] == ["ray", "start", "--address", "n7:6379"]
    assert server[:2] == ["lsv", "serve"]
    config = start(line(server[2:]), platform="cuda").config
    assert (config.topology.tensor, config.topology.pipeline, config.executor) == (4, 2, "ray")
    assert config.max_model_len == 4096
    own = commands.run(["bash", SLURM, "org/x", "-tp", "8", "-pp", "1"], **job)[1]
    assert start(line(own[2:]), platform="cuda").config.topology.tensor == 8


@pytest.mark.row("F-923", "F-585", "F-588", "F-589")
@pytest.mark.usefixtures("ray")
def test_the_containers_of_swarm_start(start: Start, commands: Commands) -> None:
    words = ["org/x", "-tp", "2", "--port", "8005", "--max-model-len", "20000"]
    ((*docker,),) = commands.run([SWARM, "head", "lsv:xpu", *words], OPTIONS="--device /dev/dri")
    options, inside = docker[: docker.index("lsv:xpu")], docker[docker.index("lsv:xpu") + 1 :]
    assert options[:2] == ["docker", "run"]
    assert {"--device", "/dev/dri", "--network", "--shm-size"} <= set(options)
    head, server = commands.run(["/bin/sh", *inside])
    assert re.match(r"ray start .*--node-ip-address \S+ .*--head --port=6379", " ".join(head))
    assert start(line(server[2:]), platform="xpu").config.executor == "ray"
    ((*docker,),) = commands.run([SWARM, "worker", "lsv:xpu"], DEVICES="1")
    check, worker = commands.run(["/bin/sh", *docker[docker.index("lsv:xpu") + 1 :]])
    assert check == ["ray", "health-check", "--address", "lsv-head:6379"]
    assert {"--num-gpus=1", "lsv-head:6379", "--block"} <= set(worker)


def test_a_role_that_is_none_is_refused() -> None:
    done = subprocess.run([SWARM, "haed", "lsv:cpu"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "head or worker, not haed" in done.stderr


@pytest.mark.parametrize("script", [SLURM, SWARM], ids=lambda path: path.name)
def test_scripts_are_sound(script: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
