"""A worker process collects no garbage until it has started."""

import gc

import pytest

from lsv_runtime.worker import remote


def test_garbage_is_collected_once_a_worker_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    enabled, frozen = [], []

    def serve(channel: object, started: object) -> None:
        enabled.append(gc.isenabled())
        started()
        enabled.append(gc.isenabled())

    monkeypatch.setattr(remote, "connect", lambda *given: None)
    monkeypatch.setattr(remote, "_serve", serve)
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.isenabled()))
    try:
        assert remote.main(0, 0) == 0
    finally:
        gc.enable()
    assert (enabled, frozen) == ([False, True], [False])
