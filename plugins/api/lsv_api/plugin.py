"""Manifest: one frontend, its options, and the hook that other plugins use to extend it."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.offers import FrontendOffer
from lsv.request.params import MAX_BAD_WORDS, MAX_N, MAX_STOP_STRINGS
from lsv.settings import Setting
from lsv_api import hookspecs as hookspecs
from lsv_api.contract import ContractOffer
from lsv_api.limits import Limits

api = 2


@hookimpl
def lsv_frontends() -> Iterable[FrontendOffer]:
    return (
        FrontendOffer(
            "api",
            load="lsv_api.frontend:serve",
            default=True,
            processes="api.server_count",
            explain="lsv_api.parsing:explain",
            check="lsv_api.listening:check",
        ),
    )


@hookimpl
def lsv_routes() -> Iterable[ContractOffer]:
    for name in ("openai", "responding", "messages", "ollama", "inference", "pooling", "speech", "admin"):
        yield ContractOffer(name, load=f"lsv_api.{name}.contract:make")


@hookimpl
def lsv_settings() -> Iterable[Setting]:
    return (
        Setting(
            name="api.server_count",
            type="int",
            default=1,
            low=1,
            high=64,
            help="number of API processes, which share an address and an engine",
            scope="serve",
        ),
        Setting(
            name="api.accounts",
            type="str",
            help="TOML file of accounts with their keys, weights and limits",
            scope="serve",
        ),
        Setting(
            name="api.shared_prefix_cache",
            type="bool",
            default=False,
            help="let accounts share cached prefixes; the time to first token then reveals what others have requested",
            scope="serve",
        ),
        Setting(
            name="api.allow_runtime_lora_updating",
            aliases=("allow_runtime_lora_updating",),
            type="bool",
            default=False,
            env=("VLLM_ALLOW_RUNTIME_LORA_UPDATING",),
            help="let clients load and unload adapters from folders of this machine",
            scope="serve",
        ),
        Setting(
            name="api.request_templates",
            aliases=("trust_request_chat_template",),
            type="bool",
            default=False,
            help="let chat requests bring their own chat template",
            scope="serve",
        ),
        Setting(
            name="api.template_timeout",
            type="float",
            default=5.0,
            low=0.1,
            help="time limit in seconds for rendering a chat template of a request",
            scope="serve",
        ),
        Setting(
            name="api.template_memory_mb",
            type="float",
            default=128.0,
            low=16,
            help="memory limit in MiB for rendering a chat template of a request",
            scope="serve",
        ),
        Setting(
            name="api.heartbeat",
            type="float",
            default=15.0,
            low=0.1,
            help="seconds of silence after which a stream sends a comment, so that no proxy closes it",
            scope="serve",
        ),
        Setting(
            name="api.max_text_mb",
            type="float",
            default=8.0,
            low=0.001,
            help="maximum size of a request body in MiB without its media",
            scope="serve",
        ),
        *_AGENTS,
        *_STORED,
        *(_limit(name, default, high, help) for name, default, high, help in _LIMITS),
    )


_AGENTS = (
    Setting(
        name="api.model_aliases",
        type="json",
        default={},
        help='JSON of further names of served models, as {"claude-*": "NAME"}',
        scope="serve",
    ),
    Setting(
        name="api.signing_key",
        type="str",
        help="signs thinking blocks, so that they can be checked after a restart and by other servers",
        scope="serve",
    ),
)
"""What agents need that speak another API than OpenAI's."""
_STORED = (
    Setting(
        name="api.responses_path",
        type="str",
        help="file in which responses are stored; off: none are (default: lsv/responses/responses.db in the cache)",
        scope="serve",
    ),
    Setting(
        name="api.responses_days",
        type="float",
        default=30.0,
        low=0.0001,
        help="days after which a stored response expires",
        scope="serve",
    ),
    Setting(
        name="api.responses_mb",
        type="float",
        default=256.0,
        low=0.01,
        help="MiB of stored responses of an account; its oldest make room",
        scope="serve",
    ),
    Setting(
        name="api.responses_count",
        type="int",
        default=10_000,
        low=1,
        help="most stored responses of an account; its oldest make room",
        scope="serve",
    ),
)
"""Settings of stored responses."""

_LIMITS = (
    ("nesting", Limits().nesting, 256, "levels of lists and objects in a body"),
    ("messages", Limits().messages, None, "messages of a conversation"),
    ("tools", Limits().tools, None, "tools of a conversation"),
    ("prompts", Limits().prompts, None, "prompts of a completion, or texts to embed"),
    ("n", Limits().n, MAX_N, "answers to a prompt"),
    ("candidates", Limits().candidates, None, "prompts times answers of a request"),
    ("stop_strings", Limits().stop_strings, MAX_STOP_STRINGS, "stop strings of a request"),
    ("bad_words", Limits().bad_words, MAX_BAD_WORDS, "bad words of a request"),
)


def _limit(name: str, default: int, high: int | None, help: str) -> Setting:
    """The setting of a bound on what a request may ask for."""
    return Setting(
        name=f"api.max_{name}",
        type="int",
        default=default,
        low=1,
        high=high,
        help=f"maximum number of {help}",
        scope="serve",
    )
