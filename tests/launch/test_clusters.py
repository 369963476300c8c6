"""What ``deploy/`` has for clusters: pods that Kubernetes takes, scripts that do what they say, servers that start."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import Start

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SLURM, SWARM = DEPLOY / "slurm" / "lsv.sbatch", DEPLOY / "swarm" / "node.sh"
CLUSTER, RUN = DEPLOY / "ray" / "cluster.sh", DEPLOY / "docker" / "run.sh"
BENCH = DEPLOY / "docker" / "bench.sh"
REPLICAS = DEPLOY / "slurm" / "replicas.sbatch"
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


JOB = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[7-8]", "SLURM_GPUS_ON_NODE": "4"}


@pytest.fixture
def job(commands: Commands, tmp_path: Path) -> Callable[..., list[list[str]]]:
    """What a script of SLURM runs on the nodes, containers included, one node after the other."""
    commands.add("scontrol", "#!/bin/sh\nprintf 'n7\\nn8\\n'\n")
    commands.add("srun", '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\n'
                 'for ((node = 0; node < SLURM_JOB_NUM_NODES; node++)); do\n'
                 '  SLURM_NODEID=$node "$@" || exit 1\ndone\n')  # fmt: skip
    commands.add(
        "docker",
        f"""#!/bin/bash
(echo docker; for word; do [[ $word == --entrypoint ]] && break; echo "$word"; done; echo .) >> "$RECORD"
case $1 in
load) echo "Loaded image: lsv:saved" ;;
image) [[ $2 == rm ]] ;;
run)
  while [[ $1 != --entrypoint ]]; do shift; done
  echo "image $3" >> {tmp_path}/images
  exec bash "${{@:4}}" ;;
esac
""",
    )

    def run(*words: object, script: Path = SLURM, **variables: str) -> list[list[str]]:
        return commands.run(["bash", script, *words], **{**JOB, **variables})

    return run


Job = Callable[..., list[list[str]]]


@pytest.mark.row("F-562", "F-591", "F-598", "F-600")
def test_the_job_of_slurm_starts(start: Start, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = job("org/x", "--max-model-len", "4096")
    monkeypatch.setenv("LSV_CLUSTER_KEY", "a secret of two machines")
    found = [start(line(server[2:]), platform="cuda").config for server in (first, second)]
    for number, config in enumerate(found):
        assert (config.topology.tensor, config.topology.pipeline, config.executor) == (4, 2, "nodes")
        assert config.nodes is not None
        assert (config.nodes.number, config.nodes.address, config.max_model_len) == (number, "n7", 4096)
    assert ("--headless" in first, "--headless" in second) == (False, True)
    own = job("org/x", "-tp", "8", "-pp", "1")[0]
    assert start(line(own[2:]), platform="cuda").config.topology.tensor == 8
    (alone,) = job("org/x", SLURM_JOB_NUM_NODES="1")
    assert start(line(alone[2:]), platform="cuda").config.executor == "processes"


@pytest.mark.row("F-600")
@pytest.mark.usefixtures("ray")
def test_a_job_of_slurm_may_have_ray(start: Start, job: Job) -> None:
    head, server, check, worker = job("org/x", DP_BACKEND="ray")
    assert head[:4] == ["ray", "start", "--head", "--port=6379"]
    assert check == ["ray", "health-check", "--address", "n7:6379"]
    assert worker[:4] == ["ray", "start", "--address", "n7:6379"]
    assert server[:2] == ["lsv", "serve"]
    config = start(line(server[2:]), platform="cuda").config
    assert (config.topology.tensor, config.topology.pipeline, config.executor) == (4, 2, "ray")


@pytest.mark.row("F-592", "F-593", "F-594", "F-595", "F-922")
def test_a_job_of_slurm_in_containers(job: Job, tmp_path: Path) -> None:
    saved = tmp_path / "lsv-latest.tar.gz"
    saved.touch()
    calls = job("--workspace", tmp_path, "org/x", "--container-mount", "/models")
    assert calls[0] == ["docker", "load", "--quiet", "--input", str(saved)]
    run = calls[1]
    assert run[:2] == ["docker", "run"]
    assert {"/models:/models", f"{tmp_path}:{tmp_path}", "--gpus", "LSV_CLUSTER_KEY", "SLURM_NODEID"} <= set(run)
    assert calls[2][:2] == ["lsv", "serve"]
    assert {"org/x", "--nnodes"} <= set(calls[2])
    assert len(calls) == 2 * 3
    named = job("-w", tmp_path, "--image", "registry/lsv:cuda", "-f", "org/x", OPTIONS="--device /dev/dri")
    assert [call[1] for call in named[:4]] == ["rm", "image", "image", "pull"]
    assert {"--device", "/dev/dri"} <= set(named[4])
    assert set((tmp_path / "images").read_text().split("\n")) == {"image lsv:saved", "image registry/lsv:cuda", ""}


@pytest.mark.row("F-596", "F-597")
def test_a_job_of_slurm_is_profiled(start: Start, job: Job, tmp_path: Path) -> None:
    (recorded,) = job("org/x", "-w", tmp_path, "--nsys", SLURM_JOB_NUM_NODES="1")
    assert recorded[:5] == ["lsv", "nsys", "--output", f"{tmp_path}/nsys-lsv", "serve"]
    (profiled,) = job("org/x", "-w", tmp_path, "--profile", SLURM_JOB_NUM_NODES="1")
    profiling = start(line(profiled[2:]), platform="cuda").config.profiling
    assert profiling is not None
    assert (profiling.kind, profiling.folder) == ("torch", f"{tmp_path}/lsv_profile")


@pytest.mark.parametrize(
    ("words", "variables", "said"),
    [
        (["org/x", "--image"], {}, "--image needs a value"),
        (["org/x", "--nsys", "--profile"], {}, "take one of them"),
        (["org/x"], {"DP_BACKEND": "rpc"}, "DP_BACKEND must be ray, or left out"),
    ],
)
def test_a_job_that_can_not_be_is_refused(job: Job, words: list[str], variables: dict[str, str], said: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        job(*words, **variables)
    assert caught.value.returncode == 2
    assert said in caught.value.stderr.decode()


@pytest.mark.row("F-577", "F-578", "F-579")
def test_a_cluster_of_containers(commands: Commands) -> None:
    options = ("--gpus", "all", "--privileged", "--env", "NCCL_IB_HCA=mlx5")
    head, stop = commands.run([CLUSTER, "lsv:cuda", "10.0.0.1", "--head", "/models", *options])
    assert stop == ["docker", "stop", "lsv-node"], "it ends with its shell"
    assert {*options, "/models:/cache/huggingface", "host"} <= set(head[: head.index("lsv:cuda")])
    (started,) = commands.run(["/bin/sh", *head[head.index("lsv:cuda") + 1 :]])
    assert {"ray", "--head", "--port=6379", "--node-ip-address=10.0.0.1", "--block"} <= set(started)
    worker = commands.run([CLUSTER, "lsv:cuda", "10.0.0.1", "--worker", "/models"])[0]
    check, joined = commands.run(["/bin/sh", *worker[worker.index("lsv:cuda") + 1 :]])
    assert check == ["ray", "health-check", "--address", "10.0.0.1:6379"]
    assert {"ray", "--block", "--address=10.0.0.1:6379"} <= set(joined)


@pytest.mark.row("F-914", "F-916", "F-921")
@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize(
    ("mode", "words", "executor"),
    [
        ("single", [], "inline"),
        ("mp", ["-tp", "4"], "processes"),
        ("rpc", ["-tp", "4"], "processes"),
        ("ray", ["-tp", "4"], "ray"),
    ],
)
def test_a_server_in_a_container(start: Start, commands: Commands, mode: str, words: list[str], executor: str) -> None:
    given = {"IMAGE": "lsv:xpu", "MOUNT": "/models", "OPTIONS": "--device /dev/dri --group-add render"}
    ((*docker,),) = commands.run([RUN, mode, "org/x", *words], **given)
    options, server = docker[: docker.index("lsv:xpu")], docker[docker.index("lsv:xpu") + 1 :]
    assert {"--device", "/dev/dri", "/models:/models", "--rm", "host"} <= set(options)
    assert start(line(server), platform="cuda").config.executor == executor
    ((*docker,),) = commands.run([RUN, mode, "org/x", *words])
    assert docker[docker.index("--gpus") :][:3] == ["--gpus", "all", "lsv:cuda"]


@pytest.mark.row("F-317")
def test_a_benchmark_in_a_container(commands: Commands, tmp_path: Path) -> None:
    words = ["--model", "org/x", "--input-len", "16", "--tensor-parallel-size", "2"]
    assert commands.run([BENCH, *words]) == [["lsv", "bench", "throughput", *words]]
    ((*traced,),) = commands.run([BENCH, "--nsys", *words])
    assert traced == ["lsv", "nsys", "--output", "nsys-offline", "bench", "throughput", *words, "--profile"]
    given = {"MOUNT": "/models", "OPTIONS": "--device /dev/dri"}
    file = tmp_path / "new" / "calls.json"
    ((*docker,),) = commands.run([BENCH, *words, "--image", "lsv:xpu", "--viztracer", file], **given)
    options, inside = docker[: docker.index("lsv:xpu")], docker[docker.index("lsv:xpu") + 1 :]
    assert {"--device", "/dev/dri", "/models:/models", f"{file}.ranks:{file}.ranks"} <= set(options)
    assert inside[: 3 + len(words)] == ["bench", "throughput", *words, "--profile"]
    profile = json.loads(inside[inside.index("--profiler-config") + 1])
    assert profile == {"profiler": "viztracer", "torch_profiler_dir": f"{file}.ranks"}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ((RUN, "grpc", "org/x"), "must be single, mp, ray or rpc, not 'grpc'"),
        ((CLUSTER, "lsv:cuda"), "usage"),
        ((BENCH, "--model", "x", "--image"), "--image needs a value"),
        ((BENCH, "--nsys", "--viztracer", "x"), "take one of them"),
    ],
)
def test_what_is_no_way_to_start_is_refused(script: tuple[object, ...], said: str) -> None:
    done = subprocess.run([str(word) for word in script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.row("F-569", "F-571", "F-574", "F-599")
def test_the_job_of_slurm_with_replicas_starts(start: Start, job: Job) -> None:
    cards = {"SLURM_GPUS_ON_NODE": "8", "TP": "4"}
    server, other = job("org/x", "--max-model-len", "4096", script=REPLICAS, **cards)
    key = {"LSV_CLUSTER_KEY": "a secret of two machines"}
    first, second = (start(line(each[2:], key), platform="cuda").config for each in (server, other))
    assert (first.topology.tensor, first.topology.data, first.topology.local) == (4, 4, (0, 2))
    assert second.topology.local == (2, 2)
    assert (first.replica_nodes.headless, second.replica_nodes.headless) == (False, True)
    assert (first.replica_nodes.address, first.max_model_len) == ("n7", 4096)
    whole = job("org/x", script=REPLICAS, **{**cards, "TP": "8"})
    assert start(line(whole[0][2:], key), platform="cuda").config.topology.data == 2, "2 x 8 cards by TP 8"
    spread = job("org/x", "--enable-expert-parallel", script=REPLICAS, **{**cards, "TP": "8"})
    assert [start(line(one[2:], key)).config.topology.expert for one in spread] == [16, 16]


@pytest.mark.row("F-569", "F-571", "F-599")
@pytest.mark.parametrize(
    ("script", "variables"),
    [(REPLICAS, {"SLURM_GPUS_ON_NODE": "8", "TP": "8", "PP": "2"}), (SLURM, {"SLURM_GPUS_ON_NODE": "8", "DP": "2"})],
)
def test_the_job_of_slurm_with_replicas_of_several_nodes_starts(
    start: Start, job: Job, script: Path, variables: dict[str, str]
) -> None:
    servers = job("org/x", script=script, SLURM_JOB_NUM_NODES="4", **variables)
    key = {"LSV_CLUSTER_KEY": "a secret of four machines"}
    found = [start(line(server[2:], key), platform="cuda").config for server in servers]
    first = found[0].topology
    assert (first.data, first.tensor, first.pipeline) == (2, 8, 2)
    assert [(one.executor, one.nodes.number, one.topology.replica) for one in found] == [
        ("nodes", 0, 0), ("nodes", 1, 0), ("nodes", 2, 1), ("nodes", 3, 1),
    ]  # fmt: skip
    assert {(one.nodes.count, one.nodes.address, one.devices) for one in found} == {(4, "n7", 8)}


@pytest.mark.parametrize(
    ("script", "variables", "said"),
    [
        (REPLICAS, {"TP": "6"}, "TP x PP = 6 cards of a replica must be those of whole nodes"),
        (REPLICAS, {"TP": "4", "PP": "3"}, "and divide the 8 of the job"),
        (SLURM, {"DP": "3"}, "DP=3 replicas must have as many nodes each"),
    ],
)
def test_nodes_that_can_not_be_divided_are_refused(
    job: Job, script: Path, variables: dict[str, str], said: str
) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        job("org/x", script=script, **variables)
    assert caught.value.returncode == 2
    assert said in caught.value.stderr.decode()


@pytest.mark.row("F-923", "F-585", "F-588", "F-589")
@pytest.mark.usefixtures("ray")
def test_the_containers_of_swarm_start(start: Start, commands: Commands) -> None:
    words = ["org/x", "-tp=2", "-pp=1", "--port", "8005", "--max-model-len=20000"]
    ((*docker,),) = commands.run([SWARM, "head", "lsv:xpu", *words], OPTIONS="--device /dev/dri")
    options, inside = docker[: docker.index("lsv:xpu")], docker[docker.index("lsv:xpu") + 1 :]
    assert options[:2] == ["docker", "run"]
    assert {"--device", "/dev/dri", "--network", "--shm-size"} <= set(options)
    head, server = commands.run(["/bin/sh", *inside])
    assert re.match(r"ray start .*--node-ip-address \S+ .*--head --port=6379", " ".join(head))
    variables = {"CCL_ATL_TRANSPORT": "ofi", "VLLM_OFFLOAD_WEIGHTS_BEFORE_QUANT": "1"}
    found = start(line(server[2:], variables), platform="xpu")
    assert (found.config.executor, found.config.options["xpu.ccl_transport"]) == ("ray", "ofi")
    assert found.warnings.count("no effect") == 0
    ((*docker,),) = commands.run([SWARM, "worker", "lsv:xpu"], DEVICES="1")
    check, worker = commands.run(["/bin/sh", *docker[docker.index("lsv:xpu") + 1 :]])
    assert check == ["ray", "health-check", "--address", "lsv-head:6379"]
    assert {"--num-gpus=1", "lsv-head:6379", "--block"} <= set(worker)


def test_a_role_that_is_none_is_refused() -> None:
    done = subprocess.run([SWARM, "haed", "lsv:cpu"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "head or worker, not haed" in done.stderr


@pytest.mark.parametrize("script", [SLURM, REPLICAS, SWARM, CLUSTER, RUN, BENCH], ids=lambda path: path.name)
def test_scripts_are_sound(script: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
