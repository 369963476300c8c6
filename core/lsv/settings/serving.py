"""The options of a server, beside those of its engine."""

from __future__ import annotations

from lsv.settings import Setting
from lsv.settings.elsewhere import ELSEWHERE, NEUTRAL_OF_SERVERS
from lsv.settings.setting import grouped

SERVE = (
    *grouped(
        "Server",
        "serve",
        Setting(name="host", default="127.0.0.1", help="address to listen on; 0.0.0.0 is every interface", main=True),
        Setting(name="port", type="int", default=8000, low=0, high=65535, help="port to listen on", main=True),
        Setting(name="uds", help="path of a unix socket to listen on instead of --host and --port"),
        Setting(
            name="api_key", type="list", default=(), env=("VLLM_API_KEY",),
            help="keys of which requests must carry one (default: none asked)", main=True
        ),
        Setting(
            name="admin_api_key", type="list", default=(),
            help="keys that open the routes for the operator, too, such as /sleep",
        ),
        Setting(
            name="enable_force_include_usage", type="bool", default=False,
            help="end every stream with the usage, asked for or not",
        ),
        Setting(
            name="protect_metrics", type="bool", default=False,
            help="ask for the API key on /metrics, /health and /ready, too, which are open to monitoring otherwise",
        ),
        Setting(name="root_path", default="", help="prefix that a proxy in front adds, such as /llm"),
        Setting(
            name="allowed_hosts", type="list", default=(),
            help="names the server may be called by, such as *.example.com, * for any (default: any; only localhost "
            "without a key on a loopback address)",
        ),
        Setting(name="allowed_origins", type="list", default=(), help="web origins that may call it, * for any"),
        Setting(name="allowed_methods", type="list", default=("*",), help="methods web pages may use"),
        Setting(name="allowed_headers", type="list", default=("*",), help="headers web pages may send"),
        Setting(name="allow_credentials", type="bool", default=False, help="let web pages send cookies"),
        Setting(name="ssl_keyfile", help="PEM file of the server's key", main=True),
        Setting(name="ssl_certfile", help="PEM file of the server's certificate", main=True),
        Setting(
            name="ssl_ca_certs", help="PEM file of the authorities that clients' certificates must be signed by"
        ),
        Setting(
            name="ssl_cert_reqs", type="int", default=0, low=0, high=2,
            help="certificates of clients: 0 are not asked for, 1 are checked where there is one, 2 are required",
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
            help="give the chat template contents as text (string) or as parts (openai); auto is what it reads",
        ),
        Setting(
            name="default_chat_template_kwargs", type="json", default={},
            help='JSON of variables for the chat template where a request brings none, as {"enable_thinking": false}',
        ),
        Setting(
            name="tool_call_parser",
            help="how the model writes calls of tools (default: by its chat template; none is none)",
        ),
        Setting(
            name="tool_parser_plugin",
            help="file of Python that offers further parsers by the hook lsv_tool_parsers, for --tool-call-parser",
        ),
        Setting(
            name="reasoning_parser",
            help="how the model marks what it thinks before it answers (default: by its chat template; none is none)",
        ),
        Setting(
            name="enable_in_reasoning", type="bool", default=False,
            aliases=("structured_outputs_config_enable_in_reasoning",),
            help="schemas and grammars hold from an answer's first token on, and leave it no thoughts",
        ),
        Setting(
            name="exclude_tools_when_tool_choice_none", type="bool", default=False,
            help="do not show the model the tools of a request whose tool_choice is none",
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
        Setting(name="enable_log_requests", type="bool", default=True, help="log requests, unless they are disabled"),
        Setting(
            name="headless", type="bool", default=False,
            help="serve nothing: this machine has ranks (--nnodes) or replicas (-dp) of a server that is on another",
        ),
        Setting(name="disable_log_stats", type="bool", default=False, help="do not log throughput"),
        Setting(
            name="drain_timeout", type="float", default=30.0, low=0,
            help="seconds running requests get to end when the server stops",
        ),
        Setting(
            name="restart_engine", type="bool",
            help="start the engine again when it dies or hangs (default: only where it is one of several replicas)",
        ),
        Setting(
            name="restart_limit", type="int", default=5, low=1,
            help="restarts within --restart-window after which a dead engine stays dead",
        ),
        Setting(
            name="restart_window", type="float", default=600.0, low=1,
            help="seconds for which a restart counts",
        ),
        Setting(
            name="keep_alive_on_engine_death", type="bool", default=False, env=("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH",),
            help="keep answering (503) when the engine is gone instead of leaving",
        ),
    ),
    *grouped(ELSEWHERE, "serve", *NEUTRAL_OF_SERVERS),
)  # fmt: skip
