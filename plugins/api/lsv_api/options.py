"""What an operator chose for the API, as one frozen record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from lsv.settings.structured import enable_in_reasoning
from lsv.text.chat_template import ContentFormat
from lsv.text.shipped_templates import read_template
from lsv_api.limits import Limits
from lsv_api.prompt_log import PromptLog
from lsv_base.errors import ConfigError
from lsv_base.processes.confinement.terms import Mode


class ApiOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the API server; times in seconds.

    ``api_keys`` and ``accounts`` (a file of them) empty leave the server open; with them, ``protect_metrics`` asks for
    a key to read metrics and health, too. ``shared_prefix_cache`` lets accounts find each other's prefixes.
    ``admin_keys`` open the routes that are for the operator, as accounts marked so do. ``server_count`` is how many
    processes serve. ``allowed_hosts`` are names the server may be called by, see ``lsv_base.processes.visitors``.
    ``chat_template`` is the template's text, None for the tokenizer's own. ``content_format`` is how it gets contents,
    ``default_chat_template_kwargs`` what it gets where a request brings none. ``tool_call_parser`` and
    ``reasoning_parser`` are names of parsers, None for those that fit the template; ``tool_parser_plugin`` is a file
    that offers more of them; ``exclude_tools`` keeps tools that may not be called from the template, and
    ``enable_in_reasoning`` answers with a form from thinking first. ``uds`` is the path of a unix socket, instead of
    host and port. ``ssl_cert_reqs`` is how much certificates of clients are asked for, as ``ssl.CERT_NONE`` …
    ``CERT_REQUIRED``, and ``ssl_ca_certs`` who must have signed them. ``template_memory`` is in bytes.
    ``root_path`` is the prefix a proxy in front adds, like ``/llm``. ``keep_alive_on_engine_death`` keeps the
    server up, answering 503, when its engine is gone. ``prompt_log`` says what the log shows of prompts, None for
    nothing. ``runtime_adapters`` lets clients load and unload adapters. ``model_aliases`` has patterns of names
    that requests may use, and the served name that each stands for.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    protect_metrics: bool = False
    accounts: str | None = None
    admin_keys: tuple[str, ...] = ()
    shared_prefix_cache: bool = False
    server_count: int = 1
    chat_template: str | None = None
    content_format: ContentFormat = "auto"
    default_chat_template_kwargs: Mapping[str, Any] = {}
    request_templates: bool = False
    template_timeout: float = 5.0
    template_memory: int = 128 << 20
    confinement: Mode = "auto"
    tool_call_parser: str | None = None
    tool_parser_plugin: str | None = None
    reasoning_parser: str | None = None
    exclude_tools: bool = False
    enable_in_reasoning: bool = False
    response_role: str = "assistant"
    root_path: str = ""
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    allowed_methods: tuple[str, ...] = ("*",)
    allowed_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    uds: str | None = None
    ssl_keyfile: str | None = None
    ssl_certfile: str | None = None
    ssl_ca_certs: str | None = None
    ssl_cert_reqs: int = 0
    ssl_ciphers: str | None = None
    limits: Limits = Limits()
    return_tokens_as_token_ids: bool = False
    force_include_usage: bool = False
    drain_timeout: float = 30.0
    heartbeat: float = 15.0
    body_timeout: float = 60.0
    log_requests: bool = True
    prompt_log: PromptLog | None = None
    keep_alive_on_engine_death: bool = False
    runtime_adapters: bool = False
    model_aliases: Mapping[str, str] = {}

    @property
    def keyless(self) -> bool:
        """Whether anybody may use the server."""
        return not self.api_keys and self.accounts is None

    @property
    def open_routes(self) -> frozenset[str]:
        """The kinds of routes (``Route.open``) that need no key."""
        if self.keyless:
            return frozenset({"never", "monitoring", "always"})
        return frozenset({"always"} if self.protect_metrics else {"monitoring", "always"})

    def __post_init__(self) -> None:
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise ConfigError(f"root-path must look like /prefix, got {self.root_path!r}", param="root_path")
        if self.allow_credentials and "*" in self.allowed_origins:
            raise ConfigError(
                "allow-credentials needs allowed-origins by name: with '*' any page could act for its user",
                param="allow_credentials",
            )
        if bool(self.ssl_keyfile) != bool(self.ssl_certfile):
            raise ConfigError("ssl-keyfile and ssl-certfile must be given together", param="ssl_keyfile")
        for name in ("ssl_ca_certs", "ssl_cert_reqs", "ssl_ciphers"):
            if getattr(self, name) and not self.ssl_certfile:
                raise ConfigError(
                    f"{name.replace('_', '-')} requires HTTPS: set ssl-certfile and ssl-keyfile, too", param=name
                )
        if self.ssl_cert_reqs and not self.ssl_ca_certs:
            raise ConfigError(
                "ssl-cert-reqs asks for certificates of clients: give their authorities with ssl-ca-certs",
                param="ssl_cert_reqs",
            )
        if not isinstance(self.model_aliases, dict) or not all(isinstance(n, str) for n in self.model_aliases.values()):
            raise ConfigError(
                'api-model-aliases must be a JSON object of names, as {"claude-*": "NAME"}', param="api.model_aliases"
            )
        if not isinstance(self.default_chat_template_kwargs, dict):
            raise ConfigError(
                "default-chat-template-kwargs must be a JSON object", param="default_chat_template_kwargs"
            )

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> ApiOptions:
        """The options among ``settings``; one that is absent or None keeps its default.

        Raises ``ConfigError`` for values that contradict each other and for an unreadable template file.
        """
        given = {
            field: convert(settings[name])
            for field, (name, convert) in _SETTINGS.items()
            if settings.get(name) is not None
        }
        bounds = {
            field: convert(settings[name])
            for field, (name, convert) in _LIMITS.items()
            if settings.get(name) is not None
        }
        given |= _logging(settings)
        given["enable_in_reasoning"] = enable_in_reasoning(settings)
        return cls(**given, limits=Limits(**bounds))


def _logging(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields for the log of requests. Prompts are logged where an option asks for that, and not by default.

    Raises ``ConfigError`` for options that contradict each other.
    """
    enabled, disabled = settings.get("enable_log_requests"), settings.get("disable_log_requests")
    if enabled and disabled:
        raise ConfigError(
            "enable-log-requests logs prompts, and disable-log-requests logs no requests: set only one",
            param="enable_log_requests",
        )
    if disabled or enabled is False:
        return {"log_requests": False}
    most = settings.get("max_log_len")
    return {"prompt_log": PromptLog(most)} if enabled or most is not None else {}


def _tuple(value: str | Sequence[str]) -> tuple[str, ...]:
    """A list from a file, or one string from a flag; empty strings do not count."""
    return tuple(item for item in ([value] if isinstance(value, str) else value) if item)


def _megabytes(value: float) -> int:
    return int(value * (1 << 20))


def _unchanged(value: Any) -> Any:
    return value


_SETTINGS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "host": ("host", str),
    "port": ("port", int),
    "api_keys": ("api_key", _tuple),
    "protect_metrics": ("protect_metrics", bool),
    "accounts": ("api.accounts", str),
    "admin_keys": ("admin_api_key", _tuple),
    "shared_prefix_cache": ("api.shared_prefix_cache", bool),
    "server_count": ("api.server_count", int),
    "chat_template": ("chat_template", read_template),
    "content_format": ("chat_template_content_format", str),
    "default_chat_template_kwargs": ("default_chat_template_kwargs", _unchanged),
    "request_templates": ("api.request_templates", bool),
    "template_timeout": ("api.template_timeout", float),
    "template_memory": ("api.template_memory_mb", _megabytes),
    "confinement": ("confinement", str),
    "tool_call_parser": ("tool_call_parser", str),
    "tool_parser_plugin": ("tool_parser_plugin", str),
    "reasoning_parser": ("reasoning_parser", str),
    "exclude_tools": ("exclude_tools_when_tool_choice_none", bool),
    "response_role": ("response_role", str),
    "root_path": ("root_path", str),
    "allowed_hosts": ("allowed_hosts", _tuple),
    "allowed_origins": ("allowed_origins", _tuple),
    "allowed_methods": ("allowed_methods", _tuple),
    "allowed_headers": ("allowed_headers", _tuple),
    "allow_credentials": ("allow_credentials", bool),
    "uds": ("uds", str),
    "ssl_keyfile": ("ssl_keyfile", str),
    "ssl_certfile": ("ssl_certfile", str),
    "ssl_ca_certs": ("ssl_ca_certs", str),
    "ssl_cert_reqs": ("ssl_cert_reqs", int),
    "ssl_ciphers": ("ssl_ciphers", str),
    "return_tokens_as_token_ids": ("return_tokens_as_token_ids", bool),
    "force_include_usage": ("enable_force_include_usage", bool),
    "drain_timeout": ("drain_timeout", float),
    "heartbeat": ("api.heartbeat", float),
    "runtime_adapters": ("api.allow_runtime_lora_updating", bool),
    "model_aliases": ("api.model_aliases", _unchanged),
    "keep_alive_on_engine_death": ("keep_alive_on_engine_death", bool),
}
"""Field → (setting, how its value is read)."""

_LIMITS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "body_bytes": ("max_body_mb", _megabytes),
    "text_bytes": ("api.max_text_mb", _megabytes),
    "nesting": ("api.max_nesting", int),
    "messages": ("api.max_messages", int),
    "tools": ("api.max_tools", int),
    "prompts": ("api.max_prompts", int),
    "n": ("api.max_n", int),
    "candidates": ("api.max_candidates", int),
    "stop_strings": ("api.max_stop_strings", int),
    "bad_words": ("api.max_bad_words", int),
}
"""The same for ``Limits``; the others follow from what a body can hold and have no setting."""
