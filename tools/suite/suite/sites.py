"""Running API servers over fake engines, and clients that talk to them on real ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

import httpx2
import openai
import pytest

from lsv.engine.client import Service
from lsv_api.app import create_app
from lsv_api.options import ApiOptions
from lsv_api.server import Server
from lsv_testing.fakes.client import FakeClient


class Site:
    """One server in this event loop, its fake engine, and an HTTP client for it."""

    def __init__(
        self,
        engine: FakeClient,
        service: Service,
        options: ApiOptions,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.engine = engine
        self.service = service
        self.options = options
        self.app = create_app(service, options, settings=settings)
        self.server = Server(service, options, self.app)
        self.http = httpx2.AsyncClient(timeout=20, verify=False)
        self.task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.task = asyncio.create_task(self.server.run())
        while not self.server.address:
            assert not self.task.done(), self.task.result()
            await asyncio.sleep(0.005)
        self.http.base_url = self.server.address

    async def stop(self) -> None:
        await self.http.aclose()
        if "openai" in vars(self):
            await self.openai.close()
        self.server.stop()
        self.server.stop()
        await asyncio.wait([self.task])

    @cached_property
    def openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.server.address}/v1", api_key="EMPTY", max_retries=0)

    async def post(self, path: str, **body: Any) -> httpx2.Response:
        return await self.http.post(path, json=body)

    async def chat(self, **body: Any) -> httpx2.Response:
        return await self.post("/v1/chat/completions", **({"messages": USER} | body))

    async def complete(self, **body: Any) -> httpx2.Response:
        return await self.post("/v1/completions", **({"prompt": "Hi"} | body))


USER = [{"role": "user", "content": "Hi"}]

StartSite = Callable[..., Awaitable[Site]]


@pytest.fixture
async def start() -> AsyncIterator[StartSite]:
    """Start servers: ``await start(engine=…, names=…, settings=…, any_option=…)``."""
    sites: list[Site] = []

    async def start_site(
        engine: FakeClient | None = None,
        names: tuple[str, ...] = ("fake",),
        settings: Mapping[str, Any] = MappingProxyType({}),
        **options: Any,
    ) -> Site:
        engine = engine or FakeClient()
        service = Service(dict.fromkeys(names, engine))
        site = Site(engine, service, ApiOptions(port=0, **options), {"api.responses_path": "off", **settings})
        sites.append(site)
        await site.start()
        return site

    yield start_site
    for site in sites:
        await site.stop()


@pytest.fixture
async def site(start: StartSite) -> Site:
    return await start()
