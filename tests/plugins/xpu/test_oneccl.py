"""oneCCL's variables as settings, and how ranks decide on a way to exchange data."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lsv.settings import Declared, gather, neutral
from lsv_base.errors import ConfigError
from lsv_base.processes.folder import PrivateFolder
from lsv_runtime.devices.collectives import serve_store
from lsv_runtime.devices.communicator import Group
from lsv_runtime.emulation.placement.launches import EmulatedGloo
from lsv_testing.fakes.engine import engine_config
from lsv_xpu import checks, oneccl, plugin, trial
from lsv_xpu.devices_table import by_short_name
from lsv_xpu.emulation.platform import FakeVendor
from lsv_xpu.links import Links
from lsv_xpu.probe import describe
from lsv_xpu.runtime import TorchXpu, run_trial

GIB = 1 << 30


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test hands to oneCCL is gone afterwards."""
    for name in (*(variable.name for variable in oneccl.VARIABLES), "UCX_MEMTYPE_CACHE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.row("F-457", "F-458")
def test_variables_are_settings_by_their_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CCL_TOPO_P2P_ACCESS", "0")
    monkeypatch.setenv("CCL_ZE_IPC_EXCHANGE", "pidfd")
    monkeypatch.setenv("ZE_AFFINITY_MASK", "0,1")
    monkeypatch.setenv("VLLM_XPU_ENABLE_XPU_GRAPH", "1")
    options = gather(Declared(plugin.lsv_settings()), {}).plugin_options()
    assert options[oneccl.PEER_ACCESS] == "0"
    assert options["xpu.ccl_ipc_exchange"] == "pidfd"
    assert (options["xpu.affinity_mask"], options["xpu.graph"]) == ("0,1", "1")
    assert list(oneccl.problems(options)) == []
    assert oneccl.variables(options, peer_access=False) == {
        "CCL_TOPO_P2P_ACCESS": "0", "CCL_ZE_IPC_EXCHANGE": "pidfd", "CCL_ZE_CACHE_OPEN_IPC_HANDLES": "0",
        "UCX_MEMTYPE_CACHE": "n",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "good", "bad", "expected"),
    [
        ("xpu.ccl_p2p_access", "auto 0 1", "yes 2", "CCL_TOPO_P2P_ACCESS) must be one of auto, 0, 1, got 'yes'"),
        ("xpu.ccl_ipc_exchange", "pidfd drmfd sockets", "socket", "CCL_ZE_IPC_EXCHANGE) must be one of pidfd, drmfd"),
        ("xpu.ccl_transport", "ofi mpi", "tcp", "CCL_ATL_TRANSPORT) must be one of ofi, mpi, got 'tcp'"),
        ("xpu.ccl_provider", "tcp shm psm3 tcp;ofi_rxm", "TCP!", "FI_PROVIDER) must be the name of a libfabric"),
        ("xpu.ccl_log_level", "error warn info debug trace", "verbose", "CCL_LOG_LEVEL) must be one of error"),
        ("xpu.ccl_allreduce", "ring topo:0-8192;ring:8193-max", "ring: ;ring", "CCL_ALLREDUCE) must be algorithm"),
        ("xpu.ccl_allgatherv", "ring direct", "0-1", "CCL_ALLGATHERV) must be algorithm"),
        ("xpu.ccl_topology_check", "0 1", "off", "VERTEX_CONNECTION_CHECK) must be one of 0, 1"),
        ("xpu.ccl_cache_handles", "0 1", "no", "OPEN_IPC_HANDLES) must be one of 0, 1"),
    ],
)
def test_values_are_checked(setting: str, good: str, bad: str, expected: str) -> None:
    for value in good.split():
        assert list(oneccl.problems({setting: value})) == [], value
    first, *others = bad.split() if " ;" not in bad else [bad]
    (problem,) = oneccl.problems({setting: first})
    assert expected in problem
    assert all(list(oneccl.problems({setting: value})) for value in others)


def problems(**changes: Any) -> str:
    return "; ".join(checks.problems(engine_config(platform="xpu", **changes)))


def test_a_configuration_is_refused_with_all_its_problems() -> None:
    options = {"xpu.ccl_transport": "tcp", "xpu.affinity_mask": "one"}
    said = problems(emulate=True, options=options)
    for word in ("must be one of ofi, mpi", "got 'one'"):
        assert word in said
    assert problems(emulate=True, options={"xpu.affinity_mask": "0.0,1.1"}) == ""
    other = engine_config(platform="cpu", options=options)
    assert list(plugin.lsv_check_config(other)) == [], "another platform does not care"


@pytest.mark.row("F-841", "F-575")
def test_workers_are_spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(method: str) -> list[str]:
        monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", method)
        settings = gather(Declared(plugin.lsv_settings()), {})
        assert list(neutral.problems(settings, "xpu")) == [], "a variable may be meant for another program"
        assert list(neutral.dropped(settings, "cpu")) == [], "another platform does not care"
        return [setting.instead for setting in neutral.dropped(settings, "xpu")]

    assert said("spawn") == said("") == []
    (instead,) = said("fork")
    assert "a forked one can't" in instead


class FakeProber:
    """Two B60s, found under ``seen``."""

    seen: str | None = None

    def devices(self) -> tuple[Any, ...]:
        return tuple(describe(index, "a GPU", 0xE211, GIB, "1") for index in range(2))

    def mask(self) -> str | None:
        return self.seen


@pytest.mark.parametrize(
    ("seen", "mask", "expected"),
    [
        (None, "0,1", ""),
        (None, "1,5", "names 5, but there are 2 devices"),
        ("0,1", "0,1", ""),
        ("0,3,7", "0,3,7", "names 3 devices, but 2 of them are there"),
        ("4,5", "4,5", ""),
    ],
)
def test_a_mask_names_devices_that_are_there(
    seen: str | None, mask: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "Prober", FakeProber)
    monkeypatch.setattr(FakeProber, "seen", seen)
    said = problems(options={"xpu.affinity_mask": mask})
    assert expected in said
    assert bool(expected) == bool(said)


def test_ranks_need_a_device_each(monkeypatch: pytest.MonkeyPatch) -> None:
    from lsv.config import Topology

    monkeypatch.setattr(checks, "Prober", FakeProber)
    assert problems(topology=Topology(tensor=2)) == ""
    assert "needs 3 devices, and there are Intel Arc Pro B60, Intel Arc Pro B60" in problems(topology=Topology(3))
    assert "needs 3 devices, and 2 are emulated" in problems(emulate=True, topology=Topology(3))
    assert "tensor_parallel_size=2 with data_parallel_size=2 needs 4 devices" in problems(topology=Topology(2, data=2))


class LyingVendor(FakeVendor):
    """Two devices whose large messages arrive wrong under the values of ``CCL_TOPO_P2P_ACCESS`` that ``lies`` names."""

    def __init__(self, lies: str = "", *, access: bool = True) -> None:
        super().__init__(by_short_name("B60"), count=2, total=GIB)
        self.lies, self.access, self.trying = lies, access, False
        self.trials: list[str] = []
        self.runtime.can_device_access_peer = lambda device, peer: self.access  # type: ignore[method-assign]

    def try_links(self, group: Group, index: int, variables: Mapping[str, str], seconds: float) -> str | None:
        self.trials.append(variables["CCL_TOPO_P2P_ACCESS"])
        self.trying = variables["CCL_TOPO_P2P_ACCESS"] in self.lies
        try:
            return super().try_links(group, index, variables, seconds)
        finally:
            self.trying = False

    def make_collectives(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        backend = EmulatedGloo(store, rank, size, timeout)
        return Lying(backend) if self.trying else backend


class Lying:
    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def _allgather_base(self, output: torch.Tensor, mine: torch.Tensor) -> Any:
        work = self._backend._allgather_base(output, mine)
        work.wait()
        if len(mine) > 1 << 16:
            output[len(mine) + 7] ^= 1
        return work


def connect_two(
    vendors: list[LyingVendor], asked: str, *, devices: tuple[int, int] = (0, 1), address: str = ""
) -> list[Exception | None]:
    """Two ranks in threads; the error of each, or None."""
    store, folder = dist.HashStore(), PrivateFolder()
    errors: list[Exception | None] = [None, None]
    connected: list[Any] = []

    def rank(number: int) -> None:
        group = Group("tp", (0, 1), number, address or str(folder.path / "rendezvous"))
        links = Links(vendors[number], devices[number], group, {oneccl.PEER_ACCESS: asked})
        try:
            connected.append(links.connect(store, number, 2, timedelta(seconds=20)))
        except ConfigError as error:
            errors[number] = error

    threads = [threading.Thread(target=rank, args=(number,), name=str(number)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for backend in connected:  # not before both are connected
        backend.shutdown()
    folder.remove()
    return errors


@pytest.mark.row("F-457")
def test_peer_access_that_works_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    vendors = [LyingVendor() for _ in range(2)]
    caplog.set_level("INFO")
    assert connect_two(vendors, "auto") == [None, None]
    assert os.environ["CCL_TOPO_P2P_ACCESS"] == "1"
    assert [vendor.trials for vendor in vendors] == [["1"], ["1"]]
    assert "CCL_TOPO_P2P_ACCESS=1 CCL_ZE_CACHE_OPEN_IPC_HANDLES=0" in caplog.text


@pytest.mark.row("F-457")
def test_peer_access_that_lies_is_left_for_the_hosts_memory(caplog: pytest.LogCaptureFixture) -> None:
    vendors = [LyingVendor(), LyingVendor("1")]
    assert connect_two(vendors, "auto") == [None, None]
    assert os.environ["CCL_TOPO_P2P_ACCESS"] == "0"
    assert [vendor.trials for vendor in vendors] == [["1", "0"], ["1", "0"]]
    assert "(USM), not P2P: rank 1: a large all_reduce of the tp-peer group gave" in caplog.text


def test_peer_access_that_is_asked_for_and_lies_is_an_error() -> None:
    errors = connect_two([LyingVendor("1") for _ in range(2)], "1")
    for error in errors:
        assert "xpu.ccl_p2p_access=1, but P2P between the devices does not work: rank 0: a large all_reduce" in str(
            error
        )


def test_a_driver_that_denies_peer_access_needs_no_trial_of_it(caplog: pytest.LogCaptureFixture) -> None:
    vendors = [LyingVendor(access=True), LyingVendor(access=False)]
    assert connect_two(vendors, "auto") == [None, None]
    assert [vendor.trials for vendor in vendors] == [["0"], ["0"]]
    assert "rank 1: device 1 can't reach the memory of device 0" in caplog.text


@pytest.mark.row("F-464", "F-588", "F-589")
def test_ranks_that_a_store_serves_try_their_links_in_it() -> None:
    """As ranks of several machines and of Ray do, each of which calls its device the first."""
    served, address = serve_store("127.0.0.1")
    vendors = [LyingVendor(), LyingVendor("1")]
    assert connect_two(vendors, "auto", devices=(0, 0), address=address) == [None, None]
    assert [vendor.trials for vendor in vendors] == [["1", "0"], ["1", "0"]]
    del served


@pytest.mark.row("F-588")
@pytest.mark.parametrize(
    ("machines", "asked"), [(("a", "a"), [(0, 1), (1, 0)]), (("a", "b"), [])], ids=["one machine", "two machines"]
)
def test_a_driver_is_asked_of_devices_of_its_machine_alone(
    machines: tuple[str, str], asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[tuple[int, int]] = []

    def can_reach(device: int, peer: int) -> bool:
        questions.append((device, peer))
        return True

    vendors = [LyingVendor() for _ in range(2)]
    for vendor in vendors:
        vendor.runtime.can_device_access_peer = can_reach  # type: ignore[method-assign]
    monkeypatch.setattr("lsv_xpu.links._numbering", lambda: machines[int(threading.current_thread().name)])
    assert connect_two(vendors, "auto") == [None, None]
    assert sorted(questions) == asked


@pytest.mark.row("F-457")
def test_the_hosts_memory_may_be_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    vendors = [LyingVendor("1") for _ in range(2)]
    assert connect_two(vendors, "0") == [None, None]
    assert [vendor.trials for vendor in vendors] == [["0"], ["0"]]
    assert os.environ["CCL_TOPO_P2P_ACCESS"] == "0"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_ranks_that_cannot_talk_at_all_are_told_what_has_helped_others() -> None:
    for error in connect_two([LyingVendor("01"), LyingVendor()], "auto"):
        assert "can't exchange data, not even through the host's memory: rank 0: a large all_reduce" in str(error)
        assert "--xpu-ccl-allgatherv ring" in str(error)


@pytest.mark.parametrize(
    ("script", "seconds", "reason"),
    [
        ("pass", 20, None),
        ("import time; time.sleep(20)", 0.3, "a collective did not return within 0.3 s"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 20, "the trial was killed by signal 11"),
        ("raise RuntimeError('level_zero backend failed with error: 20')", 20, "RuntimeError: level_zero backend"),
        ("import sys; sys.exit(3)", 20, "exit code 3"),
    ],
)
def test_a_trial_may_end_in_every_way(script: str, seconds: float, reason: str | None) -> None:
    said = run_trial([sys.executable, "-S", "-c", script], seconds)
    assert said is None if reason is None else reason in str(said)


@pytest.mark.skipif(getattr(torch._C, "_has_xpu", False), reason="torch has XPU")
def test_a_trial_tells_what_torch_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert trial.main(Group("tp", (0, 1), 0, "127.0.0.1:1"), 0) == 1
    assert "was built without XPU: pip install torch --index-url" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.skipif(getattr(torch._C, "_has_xpu", False), reason="torch has XPU")
def test_a_trial_in_its_process_tells_what_torch_lacks() -> None:
    said = TorchXpu.try_links(object(), Group("tp", (0, 1), 0, "127.0.0.1:1"), 0, {"CCL_LOG_LEVEL": "warn"}, 60)  # type: ignore[arg-type]
    assert "was built without XPU" in str(said)
