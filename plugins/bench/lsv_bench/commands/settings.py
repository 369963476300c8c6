"""The options of ``lsv bench``, and what several kinds of benchmark read from them."""

from __future__ import annotations

import msgspec

from lsv.cli.address import API
from lsv.cli.context import JSON
from lsv.settings import Setting
from lsv.settings.neutral import neutral
from lsv.settings.setting import ANYTHING
from lsv_bench.load import ENDPOINTS
from lsv_bench.sweep import SUITES

REPORT = (
    JSON,
    Setting(name="output", aliases=("output_json",), help="also write the results to this JSON file", scope="all"),
    Setting(name="result_dir", help="also write the results into this folder, under a name of their own", scope="all"),
    Setting(name="plot", help="also draw them into this .html (or, with matplotlib, .png) file", scope="all"),
    Setting(name="metadata", type="list", default=(), help="KEY=VALUE notes to keep with the results", scope="all"),
    Setting(name="repeats", type="int", default=1, low=1, help="measure so often; tables show medians", scope="all"),
)
PERCENTILES = (
    Setting(
        name="metric_percentiles", type="list", default=("50", "90", "99"), help="percentiles to report", scope="all"
    ),
)
DATASET = (
    Setting(
        name="dataset_name",
        choices=("random", "prefix-repetition", "prefix_repetition", "sharegpt", "custom"),
        help="where prompts come from (default: the file that is given, custom where it ends in .jsonl; else random)",
        scope="all",
    ),
    Setting(
        name="dataset_path", aliases=("dataset", "data"), help="file of the sharegpt (JSON) or custom (JSONL) dataset",
        scope="all",
    ),
    Setting(
        name="random_input_len", type="int", default=1024, low=1, aliases=("input_len",), help="prompt tokens",
        scope="all",
    ),
    Setting(
        name="random_output_len", type="int", default=128, low=1, aliases=("output_len",),
        help="generated tokens; of a custom dataset where a line gives no output_len", scope="all",
    ),
    Setting(
        name="random_range_ratio", type="float", default=0.0, low=0.0, high=1.0, help="lengths vary by this share",
        scope="all",
    ),
    Setting(
        name="random_vocab_size", type="int", default=1000, low=11, help="token ids are drawn below this", scope="all"
    ),
    Setting(
        name="prefix_repetition_prefix_len", type="int", default=256, low=1, aliases=("prefix_len",),
        help="tokens that prompts share", scope="all",
    ),
    Setting(
        name="prefix_repetition_suffix_len", type="int", default=256, low=1, aliases=("suffix_len",),
        help="tokens of each prompt's own", scope="all",
    ),
    Setting(
        name="prefix_repetition_num_prefixes", type="int", default=10, low=1, aliases=("num_prefixes",),
        help="number of different prefixes", scope="all",
    ),
    Setting(
        name="prefix_repetition_output_len", type="int", default=128, low=1, help="generated tokens", scope="all"
    ),
    Setting(
        name="sharegpt_output_len", type="int", low=1,
        help="generated tokens (default: as many as the reply in the file has, estimated)", scope="all",
    ),
    Setting(name="num_prompts", type="int", default=10, low=1, help="number of requests", scope="all"),
    Setting(
        name="dataset_seed", type="int", default=0,
        help="seed of prompts and arrivals; each repeat and point adds one", scope="all",
    ),
)  # fmt: skip
OFFLINE = (
    Setting(
        name="profile", type="bool", default=False,
        help="record a profile of what is measured, as --torch-profiler-dir or --profiler-config say", scope="all",
    ),
)  # fmt: skip
INSTANCES = (
    Setting(name="instances", type="int", default=1, low=1, help="engines, each an actor of Ray Data", scope="all"),
    Setting(name="batch_size", type="int", default=32, low=1, help="requests an engine is given at once", scope="all"),
)
BATCHES = (*REPORT, *DATASET, *INSTANCES)
"""Those of ``lsv bench offline``."""
LATENCY = (
    Setting(name="batch_size", type="int", default=8, low=1, help="requests in the batch", scope="all"),
    Setting(name="num_iters", type="int", default=10, low=1, help="measured rounds", scope="all"),
    Setting(name="num_iters_warmup", type="int", default=2, low=0, help="unmeasured rounds before", scope="all"),
)
_NOT_NEEDED = tuple(
    msgspec.structs.replace(row, scope="all")
    for row in (
        neutral("trust_remote_code", False, True, instead="nothing is loaded here"),
        neutral("tokenizer", ANYTHING, instead="the server says how many tokens there are"),
        neutral("tokenizer_mode", ANYTHING, instead="the server says how many tokens there are"),
        neutral("disable_tqdm", False, True, instead="progress goes to the terminal, results to --output"),
        neutral("save_result", False, True, instead="--output or --result-dir keeps results"),
    )
)
"""Options of other programs that put servers under load."""
SERVE = (
    msgspec.structs.replace(API, default=None),
    Setting(name="host", default="127.0.0.1", help="host of the server", scope="all"),
    Setting(name="port", type="int", default=8000, help="port of the server", scope="all"),
    Setting(
        name="profile", type="bool", default=False,
        help="have the server record a profile meanwhile, where it was started with a folder for them", scope="all",
    ),
    Setting(
        name="model_name", aliases=("served_model_name",), help="served name (default: the first)", scope="all"
    ),
    Setting(name="model", help="the same, where there is no --model-name", scope="all"),
    *_NOT_NEEDED,
    Setting(name="api_key", env=("OPENAI_API_KEY", "VLLM_API_KEY"), help="key of the server", scope="all"),
    Setting(
        name="endpoint", default="completions", aliases=("backend",), choices=tuple(ENDPOINTS),
        help="what is called; chat takes text, so random prompts become words", scope="all",
    ),
    Setting(name="request_rate", default="inf", help="requests per second, or inf", scope="all"),
    Setting(
        name="burstiness", type="float", default=1.0, low=0.01,
        help="shape of the gamma distribution of arrivals: 1 is Poisson, less comes in bursts", scope="all",
    ),
    Setting(
        name="ramp_up_strategy", choices=("linear", "exponential"), help="let the rate rise to request-rate",
        scope="all",
    ),
    Setting(name="ramp_up_start_rps", type="float", default=1.0, low=0.001, help="where it rises from", scope="all"),
    Setting(name="max_concurrency", type="int", default=1024, low=1, help="most open requests", scope="all"),
    Setting(name="num_warmups", type="int", default=0, low=0, help="unmeasured requests before", scope="all"),
    Setting(name="ignore_eos", type="bool", default=True, help="generate to full length", scope="all"),
    Setting(name="temperature", type="float", default=0.0, low=0.0, help="of the requests", scope="all"),
    Setting(name="extra_body", type="json", default={}, help="JSON laid over each request", scope="all"),
    Setting(
        name="percentile_metrics", type="list", default=("ttft", "tpot", "itl", "e2el"), help="latencies to report",
        scope="all",
    ),
    Setting(
        name="goodput", type="list", default=(),
        help="count requests within these: ttft:MS tpot:MS e2el:MS", scope="all",
    ),
    *PERCENTILES,
)  # fmt: skip
SWEEP = (
    Setting(name="suite", type="list", aliases=("type",), help=f"any of {', '.join(SUITES)} (default: all that apply)",
            scope="all"),
    Setting(name="values", type="list", default=(), help="other values for the one suite that is given", scope="all"),
    Setting(
        name="bench_params", help="instead of suites a JSON file: a list of points, option to value", scope="all"
    ),
)  # fmt: skip
OWN_SERVER = (
    Setting(name="serve_cmd", help="start the server with this command, anew for each suite", scope="all"),
    Setting(
        name="bench_cmd", help='a command "… bench serve …" whose options count as if they stood here', scope="all"
    ),
    Setting(name="show_stdout", type="bool", default=False, help="show what that server prints", scope="all"),
    Setting(
        name="ready_timeout", type="float", default=600.0, low=1.0, help="seconds that a server gets to be ready",
        scope="all",
    ),
)  # fmt: skip
STARTUP = (
    Setting(name="cold", type="bool", default=False, help="start also with the checkpoint's files not in memory",
            scope="all"),
    Setting(name="num_warmups", type="int", default=1, low=0, help="unmeasured starts before", scope="all"),
)  # fmt: skip
