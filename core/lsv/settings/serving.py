"""The options of a server, beside those of its engine."""

from __future__ import annotations

from lsv.settings import Setting
from lsv.settings.elsewhere import ELSEWHERE, NEUTRAL_OF_SERVERS
from lsv.settings.setting import grouped

SERVE = (
    *grouped(
        "Server",
        "serve",
        Setting(name="host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all interfaces", main=True),
        Setting(name="port", type="int", default=8000, low=0, high=65535, help="port to listen on", main=True),
        Setting(name="uds", help="path of a unix socket to listen on, instead of --host and --port"),
        Setting(
            name="api_key", type="list", default=(), env=("VLLM_API_KEY",),
            help="accepted API keys; requests must carry one (default: none required)", main=True
        ),
        Setting(
            name="admin_api_key", type="list", default=(),
            help="API keys that also allow the operator's routes, such as /sleep",
        ),
        Setting(
            name="enable_force_include_usage", type="bool", default=False,
            help="end every stream with the usage, whether requested or not",
        ),
        Setting(
            name="protect_metrics", type="bool", default=False,
            help="also require the API key for /metrics, /health and /ready, which are open by default for "
            "monitoring",
        ),
        Setting(name="root_path", default="", help="prefix that a proxy in front adds, such as /llm"),
        Setting(
            name="allowed_hosts", type="list", default=(),
            help="host names of the server, such as *.example.com, or * for any (default: any; only localhost "
            "without a key on a loopback address)",
        ),
        Setting(name="allowed_origins", type="list", default=(), help="web origins that may call it, * for any"),
        Setting(name="allowed_methods", type="list", default=("*",), help="methods web pages may use"),
        Setting(name="allowed_headers", type="list", default=("*",), help="headers web pages may send"),
        Setting(name="allow_credentials", type="bool", default=False, help="let web pages send cookies"),
        Setting(name="ssl_keyfile", help="PEM file of the server's key", main=True),
        Setting(name="ssl_certfile", help="PEM file of the server's certificate", main=True),
        Setting(
            name="ssl_ca_certs", help="PEM file of the authorities that must have signed clients' certificates"
        ),
        Setting(
            name="ssl_cert_reqs", type="int", default=0, low=0, high=2,
            help="client certificates: 0 none requested, 1 checked if sent, 2 required",
        ),
        Setting(name="ssl_ciphers", help="ciphers of TLS 1.2, in OpenSSL's form (default: Python's choice)"),
        Setting(name="max_body_mb", type="float", default=32.0, low=0.001, help="largest request body in MiB"),
    ),
    *grouped(
        "Answers",
        "serve",
        Setting(
            name="chat_template", help="file of a chat template, or the template (default: the tokenizer's)",
            main=True,
        ),
        Setting(
            name="chat_template_content_format", default="auto", choices=("auto", "string", "openai"),
            help="form of contents for the chat template: text (string) or parts (openai); auto detects what it "
            "reads",
        ),
        Setting(
            name="default_chat_template_kwargs", type="json", default={},
            help='JSON with default variables of the chat template, as {"enable_thinking": false}',
        ),
        Setting(
            name="tool_call_parser",
            help="parser of tool calls (default: by the chat template; none: no parser)",
        ),
        Setting(
            name="tool_parser_plugin",
            help="Python file that offers further parsers through the hook lsv_tool_parsers, for --tool-call-parser",
        ),
        Setting(
            name="reasoning_parser",
            help="parser of thoughts (default: by the chat template; none: no parser)",
        ),
        Setting(
            name="enable_in_reasoning", type="bool", default=False,
            aliases=("structured_outputs_config_enable_in_reasoning",),
            help="apply schemas and grammars from an answer's first token on, without thoughts",
        ),
        Setting(
            name="exclude_tools_when_tool_choice_none", type="bool", default=False,
            help="leave tools out of the prompt if tool_choice is none",
        ),
        Setting(name="response_role", default="assistant", help="role of answers in a chat"),
        Setting(
            name="return_tokens_as_token_ids", type="bool", default=False,
            help="write tokens in log probabilities as token_id:N",
        ),
    ),
    *grouped(
        "Operation",
        "serve",
        Setting(name="disable_log_requests", type="bool", default=False, help="do not log requests", main=True),
        Setting(
            name="enable_log_requests", type="bool",
            help="log the prompts and parameters of requests, too (default: a line for each request, without them)",
        ),
        Setting(
            name="max_log_len", type="int", low=0,
            help="log prompts, but only so many characters and token ids of each",
        ),
        Setting(
            name="headless", type="bool", default=False,
            help="do not serve: this machine only has ranks (--nnodes) or replicas (-dp) of a server on another "
            "machine",
        ),
        Setting(name="disable_log_stats", type="bool", default=False, help="do not log throughput"),
        Setting(
            name="drain_timeout", type="float", default=30.0, low=0,
            help="seconds that running requests have to finish when the server stops",
        ),
        Setting(
            name="restart_engine", type="bool",
            help="restart the engine if it dies or hangs (default: only if it is one of several replicas)",
        ),
        Setting(
            name="restart_limit", type="int", default=5, low=1,
            help="maximum number of restarts within --restart-window, after which a dead engine stays dead",
        ),
        Setting(
            name="restart_window", type="float", default=600.0, low=1,
            help="seconds for which a restart counts towards --restart-limit",
        ),
        Setting(
            name="keep_alive_on_engine_death", type="bool", default=False, env=("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH",),
            help="keep the server running, answering 503, if the engine is gone",
        ),
    ),
    *grouped(ELSEWHERE, "serve", *NEUTRAL_OF_SERVERS),
)  # fmt: skip
