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

api = 1


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
    for name in ("openai", "messages", "pooling", "speech", "admin"):
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
            help="processes that answer requests, on one address and before the same engine",
            scope="serve",
        ),
        Setting(
            name="api.accounts",
            type="str",
            help="TOML file of accounts: their keys, weights and what they may use",
            scope="serve",
        ),
        Setting(
            name="api.shared_prefix_cache",
            type="bool",
            default=False,
            help="let accounts share cached prefixes; how quick a first token is then tells what others have asked",
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
            help="let a chat request bring its own chat template",
            scope="serve",
        ),
        Setting(
            name="api.template_timeout",
            type="float",
            default=5.0,
            low=0.1,
            help="seconds that rendering a chat template of a request may take",
            scope="serve",
        ),
        Setting(
            name="api.template_memory_mb",
            type="float",
            default=128.0,
            low=16,
            help="MiB of memory that rendering a chat template of a request may take",
            scope="serve",
        ),
        Setting(
            name="api.heartbeat",
            type="float",
            default=15.0,
            low=0.1,
            help="seconds of silence after which a stream gets a comment, so that no proxy closes it",
            scope="serve",
        ),
        Setting(
            name="api.max_text_mb",
            type="float",
            default=8.0,
            low=0.001,
            help="largest request body in MiB without its media",
            scope="serve",
        ),
        *_AGENTS,
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
        name=f"api.max_{name}", type="int", default=default, low=1, high=high, help=f"most {help}", scope="serve"
    )
