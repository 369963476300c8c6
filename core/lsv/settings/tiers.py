"""The options of what is behind the KV cache: host memory, and other servers."""

from __future__ import annotations

from lsv.settings.setting import Setting, grouped

TIERS = grouped(
    "Behind the KV cache",
    "engine",
    Setting(
        name="kv_offload_gib", type="float", low=0.001, high=1 << 20, aliases=("kv_offloading_size",),
        help="GiB of host memory, for all devices of a replica together, that cached beginnings are kept in when the "
        "device needs their room",
    ),
    Setting(
        name="kv_offloading_backend", choices=("native",),
        help="what --kv-offloading-size names the memory of: native is the host's",
    ),
    Setting(
        name="kv_role", choices=("producer", "consumer", "both"),
        spellings={"kv_producer": "producer", "kv_consumer": "consumer", "kv_both": "both"},
        help="what this server does of a request that another one shares: a producer computes prompts and hands their "
        "KV cache on, a consumer fetches it and answers",
    ),
    Setting(
        name="kv_host", default="127.0.0.1", env=("VLLM_NIXL_SIDE_CHANNEL_HOST",),
        help="address that a producer listens at for consumers, who must reach it by it",
    ),
    Setting(
        name="kv_port", type="int", default=5600, low=1, high=65535, env=("VLLM_NIXL_SIDE_CHANNEL_PORT",),
        help="port that a producer listens at for consumers",
    ),
    Setting(
        name="kv_peers", type="list",
        help="producers that a consumer may fetch from, as host:port,host:port; it connects to no others",
    ),
    Setting(
        name="kv_timeout", type="float", default=10.0, low=0.01, high=600,
        help="seconds that a request waits for what is fetched, or for a sign of life of who computes it; then its "
        "prompt is computed here",
    ),
    Setting(
        name="kv_transfer_config", type="json",
        help='vLLM\'s name of these: {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}',
    ),
)  # fmt: skip
