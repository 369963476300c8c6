"""The API key on every route, whatever the path is spelled like; CORS; headers."""

from __future__ import annotations

import asyncio
import re

import pytest

from lsv.engine.client import EngineStatus
from lsv_api.contracts import load_contracts
from lsv_api.options import ApiOptions
from lsv_api.prompt_log import PromptLog
from lsv_base.errors import ConfigError
from lsv_testing.fakes.client import FakeClient

ROUTES = [route for declared in load_contracts({}) for route in declared.contract.routes]
CAPTURE = re.compile(r"<\w+(?::\w+)?>")

KEY = {"authorization": "Bearer right"}


async def raw(site, request: bytes) -> bytes:
    """The answer to bytes as they are, past everything an HTTP client would tidy up."""
    host, port = site.server.address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    data = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return data


def paths():
    """Every route, and whether its errors are OpenAI's."""
    found = [(route.method, CAPTURE.sub("fake", route.path), route.errors is None) for route in ROUTES]
    return [*found, ("GET", "/openapi.json", True)]


OPERATORS = {route.path for route in ROUTES if route.admin}
MONITORING = ("/health", "/ready", "/ping", "/load", "/metrics")


@pytest.fixture
async def locked(start):
    return await start(api_keys=("right", "other"), protect_metrics=True, runtime_adapters=True)


@pytest.mark.row("F-113", "F-205", "F-820")
async def test_every_route_but_live_needs_the_key(locked):
    for method, path, plain in paths():
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "right"},
            {"authorization": "Basic right"},
        ):
            reply = await locked.http.request(method, path, headers=headers)
            if path == "/live":
                assert reply.status_code == 200
            else:
                assert reply.status_code == 401, path
                assert "Missing or wrong API key" in reply.text
                assert not plain or reply.json()["error"]["code"] == "invalid_api_key"
                assert reply.headers["www-authenticate"] == "Bearer"
        for key in ("right", "other"):
            opened = await locked.http.request(method, path, headers={"authorization": f"bearer {key}"})
            allowed = (403,) if path in OPERATORS else (404,) if "/responses/fake" in path else (200, 400)
            assert opened.status_code in allowed, path


async def test_monitoring_needs_no_key_unless_it_is_protected(start):
    site = await start(api_keys=("right",))
    for headers in ({}, {"authorization": "Bearer wrong"}, KEY):
        for path in MONITORING:
            assert (await site.http.get(path, headers=headers)).status_code == 200, path
    for path in ("/v1/models", "/version", "/openapi.json", "/"):
        assert (await site.http.get(path)).status_code == 401, path
    described = (await site.http.get("/openapi.json", headers=KEY)).json()["paths"]
    assert [path for path, methods in described.items() if "security" not in methods.get("get", {"security": 1})] == [
        "/live",
        "/ready",
        "/health",
        "/ping",
        "/load",
        "/metrics",
    ]


async def test_strangers_are_not_told_what_an_engine_died_of(start):
    engine = FakeClient()
    engine.status = EngineStatus(state="dead", error="/home/me/model: no such file")
    site = await start(engine, api_keys=("right",))
    for path in ("/health", "/ready", "/ping"):
        assert (await site.http.get(path)).json()["models"][0]["error"] is None
        assert "/home/me" in (await site.http.get(path, headers=KEY)).text


@pytest.mark.parametrize(
    "path",
    [
        "//v1/models", "/v1//models", "/v1/models/", "/v1%2fmodels", "/%76%31/models",
        "/live/../v1/models", "/live/../../metrics", "/./metrics", "/metrics/.",
        "/metrics;/live", "/metrics?/live", "/metrics#/live", "/METRICS", "/nope", "/live%00",
        "/v1/models?x=/live", "http://evil/live/../metrics", "*", "/live/x",
    ],
)  # fmt: skip
async def test_no_spelling_gets_around_the_key(locked, path):
    answer = await raw(locked, f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
    assert answer.split(b" ", 2)[1] in (b"401", b"400"), answer


@pytest.mark.parametrize("header", ["X-HTTP-Method-Override: GET", "X-Forwarded-Host: live", "X-Original-URL: /live"])
async def test_no_header_gets_around_the_key(locked, header):
    answer = await raw(locked, f"GET /metrics HTTP/1.1\r\nHost: a\r\n{header}\r\nConnection: close\r\n\r\n".encode())
    assert answer.split(b" ", 2)[1] == b"401"


@pytest.mark.parametrize("key", [b"Bearer \xff\xfe", b"Bearer", b"Bearer ", b"Bearer right right", b"\xc3\xa9 right"])
async def test_odd_keys(locked, key):
    answer = await raw(
        locked,
        b"GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: " + key + b"\r\nConnection: close\r\n\r\n",
    )
    assert answer.split(b" ", 2)[1] == b"401"


async def test_the_body_is_not_read_before_the_key_is_checked(locked):
    head = b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\nConnection: close\r\n\r\n"
    assert (await raw(locked, head)).split(b" ", 2)[1] == b"401"


@pytest.mark.parametrize("request_", [b"nonsense\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n"])
async def test_malformed_requests(site, request_):
    answer = await raw(site, request_)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b'"error"' in answer


async def test_huge_header(site):
    answer = await raw(site, b"GET /live HTTP/1.1\r\nX: " + b"y" * 9000 + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413")
    assert b'"error"' in answer


LOCAL = ["localhost", "LOCALHOST:8000", "127.0.0.1:80", "127.9.9.9", "[::1]:8000", "me.localhost:1", "localhost.", ""]
STRANGE = [
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.nip.io:8000",
    "192.168.0.7",
    "0.0.0.0",
    "[::2]",
    "local",
]


async def asked_as(site, host: str) -> int:
    head = f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer k\r\nConnection: close\r\n\r\n"
    return int((await raw(site, head.encode())).split(b" ", 2)[1])


async def test_a_page_can_not_give_the_server_its_own_name(site):
    assert [await asked_as(site, host) for host in LOCAL] == [200] * len(LOCAL)
    assert [await asked_as(site, host) for host in STRANGE] == [403] * len(STRANGE)
    reply = await site.http.get("/live", headers={"host": "evil.example"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "host_not_allowed")


@pytest.mark.parametrize("options", [{"api_keys": ("k",)}, {"host": "0.0.0.0"}, {"allowed_hosts": ("*",)}])
async def test_names_do_not_matter_where_a_key_or_the_operator_says_so(start, options):
    site = await start(**options)
    assert [await asked_as(site, host) for host in LOCAL + STRANGE] == [200] * len(LOCAL + STRANGE)


@pytest.mark.parametrize("options", [{}, {"api_keys": ("k",)}, {"host": "0.0.0.0"}])
async def test_names_by_list(start, options):
    site = await start(allowed_hosts=("Chat.example", "*.inner.example"), **options)
    for host in ("chat.example:443", "a.inner.example", "a.b.inner.example", "localhost"):
        assert await asked_as(site, host) == 200, host
    for host in ("x.chat.example", "inner.example", "example", "evil.example"):
        assert await asked_as(site, host) == 403, host


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000", "file://", ""])
async def test_pages_of_others_can_not_post(start, origin):
    closed, locked = await start(), await start(api_keys=("k",))
    opened = await start(allowed_origins=(origin or "*",))
    for site, status in ((closed, 403), (locked, 200), (opened, 200)):
        for kind in ("application/json", "application/x-www-form-urlencoded"):
            headers = {"origin": origin, "content-type": kind, "authorization": "Bearer k"}
            reply = await site.http.post("/tokenize", content=b'{"prompt": "a"}', headers=headers)
            assert reply.status_code == status, reply.text
    form = await closed.http.post("/v1/audio/transcriptions", files={"file": b"x"}, headers={"origin": origin})
    assert (form.status_code, form.json()["error"]["code"]) == (403, "origin_not_allowed")
    assert (await closed.http.get("/v1/models", headers={"origin": origin})).status_code == 200, "it can't be read"


async def test_the_servers_own_pages_may_post(site):
    own = {"origin": site.server.address}
    assert (await site.http.post("/tokenize", json={"prompt": "a"}, headers=own)).status_code == 200


async def test_plain_text_is_what_forms_can_send_without_asking(start):
    for site, status in ((await start(), 415), (await start(api_keys=("k",)), 200)):
        headers = {"content-type": "text/plain; charset=utf-8", "authorization": "Bearer k"}
        reply = await site.http.post("/tokenize", content=b'{"prompt": "a"}', headers=headers)
        assert reply.status_code == status
    for headers in ({}, {"content-type": "application/x-www-form-urlencoded"}):  # what curl -d sends
        reply = await (await start()).http.post("/tokenize", content=b'{"prompt": "a"}', headers=headers)
        assert reply.status_code == 200


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""])
@pytest.mark.parametrize("browser", [{"user-agent": "Mozilla/5.0 (X11)"}, {"sec-fetch-site": "cross-site"}])
async def test_forms_of_browsers_need_an_origin(start, kind, browser):
    """An old browser sends a form without Origin, and its body may be JSON anyway."""
    closed, locked = await start(), await start(api_keys=("k",))
    for site, status in ((closed, 403), (locked, 200)):
        headers = {"content-type": kind, "authorization": "Bearer k", **browser}
        reply = await site.http.post("/tokenize", content=b'{"prompt": "a"}', headers=headers)
        assert reply.status_code == status, reply.text
    own = {"origin": closed.server.address, "content-type": kind, **browser}
    assert (await closed.http.post("/tokenize", content=b'{"prompt": "a"}', headers=own)).status_code == 200
    asked = {"content-type": "application/json", **browser}
    assert (await closed.http.post("/tokenize", content=b'{"prompt": "a"}', headers=asked)).status_code == 200


@pytest.mark.row("F-115")
async def test_cors_is_closed_by_default(site):
    origin = {"origin": "https://a.example", "access-control-request-method": "POST"}
    reply = await site.http.options("/v1/chat/completions", headers=origin)
    assert reply.status_code == 405
    assert not any(name.startswith("access-control") for name in reply.headers)


@pytest.mark.row("F-115", "F-203", "F-204")
async def test_cors_opened(start):
    site = await start(allowed_origins=("https://a.example",), allow_credentials=True, api_keys=("k",))
    asking = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    allowed = await site.http.options("/v1/models", headers={"origin": "https://a.example", **asking})
    assert allowed.status_code == 204
    assert allowed.headers["access-control-allow-origin"] == "https://a.example"
    assert allowed.headers["access-control-allow-headers"] == "authorization"
    assert allowed.headers["access-control-allow-credentials"] == "true"
    other = await site.http.options("/v1/models", headers={"origin": "https://b.example", **asking})
    assert other.status_code == 401
    assert "access-control-allow-origin" not in other.headers
    reply = await site.http.get("/v1/models", headers={"origin": "https://a.example", "authorization": "Bearer k"})
    assert reply.headers["access-control-allow-origin"] == "https://a.example"
    assert reply.headers["vary"] == "Origin"


@pytest.mark.row("F-115", "F-204")
async def test_any_origin(start):
    site = await start(allowed_origins=("*",))
    reply = await site.http.get("/v1/models", headers={"origin": "https://a.example"})
    assert reply.headers["access-control-allow-origin"] == "*"


async def test_security_headers(site):
    reply = await site.http.get("/v1/models")
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cache-control"] == "no-store"
    assert "server" not in reply.headers


@pytest.mark.row("F-117", "F-212")
async def test_root_path(start):
    site = await start(root_path="/llm", api_keys=("right",))
    for path in ("/llm/v1/models", "/v1/models", "/llm/v1/models/fake"):
        assert (await site.http.get(path, headers=KEY)).status_code == 200
        assert (await site.http.get(path)).status_code == 401
    assert (await site.http.get("/llm/live")).status_code == 200
    assert (await site.http.get("/openapi.json", headers=KEY)).json()["servers"] == [{"url": "/llm"}]


@pytest.mark.parametrize(
    "options",
    [
        {"root_path": "llm"},
        {"root_path": "/llm/"},
        {"allow_credentials": True, "allowed_origins": ("*",)},
        {"ssl_keyfile": "k"},
    ],
)
def test_contradicting_options(options):
    with pytest.raises(ConfigError):
        ApiOptions(**options)


@pytest.mark.row("F-219", "F-220")
@pytest.mark.parametrize(
    ("settings", "lines", "prompts"),
    [
        ({}, True, None),
        ({"enable_log_requests": True}, True, PromptLog()),
        ({"max_log_len": 9}, True, PromptLog(9)),
        ({"enable_log_requests": True, "max_log_len": 0}, True, PromptLog(0)),
        ({"disable_log_requests": True, "max_log_len": 9}, False, None),
        ({"enable_log_requests": False, "max_log_len": 9}, False, None),
    ],
)
def test_prompts_are_logged_only_if_the_operator_says_so(settings, lines, prompts):
    options = ApiOptions.from_settings(settings)
    assert (options.log_requests, options.prompt_log) == (lines, prompts)


def test_the_log_of_requests_is_either_on_or_off():
    with pytest.raises(ConfigError, match="set only one"):
        ApiOptions.from_settings({"enable_log_requests": True, "disable_log_requests": True})


@pytest.mark.row("F-200", "F-201", "F-208")
def test_options_from_settings(tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("hello")
    options = ApiOptions.from_settings(
        {
            "host": "0.0.0.0",
            "port": 9000,
            "api_key": "secret",
            "chat_template": str(template),
            "allowed_origins": ["https://a.example"],
            "max_body_mb": 2,
            "disable_log_requests": True,
            "ssl_keyfile": None,
            "unrelated": 1,
        }
    )
    assert (options.host, options.port, options.api_keys) == ("0.0.0.0", 9000, ("secret",))
    assert (options.chat_template, options.allowed_origins) == ("hello", ("https://a.example",))
    assert options.prompt_log is None
    assert (options.limits.body_bytes, options.log_requests, options.ssl_keyfile) == (2 << 20, False, None)
    assert ApiOptions.from_settings({"chat_template": "{{ messages }}"}).chat_template == "{{ messages }}"
    with pytest.raises(ConfigError, match="chat template"):
        ApiOptions.from_settings({"chat_template": str(tmp_path / "missing")})
