"""All metrics of a server, under the names vLLM's dashboards query, and some of our own under ``lsv:``."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from lsv.engine.client import Service
from lsv_api.metrics.engines import EngineCollector
from lsv_api.metrics.requests import RequestMetrics
from lsv_api.metrics.room import reserve_room
from lsv_base.processes.outlet import count_dropped

_SECONDS = 1.0
"""Seconds between counts, for scrapes that other processes answer."""


class Metrics:
    """All metrics of one server, in a registry of its own. ``model_name`` is a model's first served name."""

    def __init__(self, service: Service, folder: str | None = None) -> None:
        """``folder`` is where several processes count together, if they do."""
        self._registry = CollectorRegistry(auto_describe=False)
        self._shown = self._registry
        clients = tuple({id(client): client for client in service.clients.values()}.values())
        if folder is not None:
            reserve_room(folder)
            self._shown = CollectorRegistry(auto_describe=False)
            MultiProcessCollector(self._shown, folder)
        self._clients = clients
        self._shown.register(EngineCollector(clients))
        self._requests = RequestMetrics(self._registry, max(client.config.max_model_len for client in clients))
        self._http = Counter("lsv:http_requests", "HTTP requests.", ("route", "status"), registry=self._registry)
        self._lost = Counter(
            "lsv:log_lines_lost", "Log lines that were dropped because nothing read the log.", registry=self._registry
        )
        self._lost_before = count_dropped()
        for client in clients:
            self._requests.prepare(client.config.served_names[0])
            client.on_finished(self._requests.observe)

    def advance(self) -> None:
        """Count the timings of running requests. Each of several processes counts its own."""
        for client in self._clients:
            for timings in client.take_timings():
                self._requests.observe_timings(client.config.served_names[0], timings)

    async def keep_advancing(self) -> None:
        """Count every second until cancelled."""
        while True:
            await asyncio.sleep(_SECONDS)
            self.advance()

    def count_http(self, route: str, status: int) -> None:
        """Count a request; ``route`` is the pattern of a declared route, never what a client wrote."""
        self._http.labels(route, str(status)).inc()
        self._count_lost_lines()

    def _count_lost_lines(self) -> None:
        """Count dropped log lines of this process. Several processes share a counter, which no scrape can compute."""
        lost = count_dropped()
        if lost != self._lost_before:
            self._lost.inc(lost - self._lost_before)
            self._lost_before = lost

    def text(self) -> bytes:
        """The exposition in Prometheus text format."""
        self.advance()
        self._count_lost_lines()
        return generate_latest(self._shown)
