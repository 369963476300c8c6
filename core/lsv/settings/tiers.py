"""The options of what is behind the KV cache: host memory, and other servers."""

from __future__ import annotations

from lsv.settings.setting import Setting, grouped

TIERS = grouped(
    "KV cache tiers",
    "engine",
    Setting(
        name="kv_offload_gib", type="float", low=0.001, high=1 << 20, aliases=("kv_offloading_size",),
        help="GiB of host memory, for all devices of a replica together, for cached prefixes that do not fit on the "
        "device",
    ),
    Setting(
        name="kv_offloading_backend", choices=("native",),
        help="memory for --kv-offloading-size: native is host memory",
    ),
    Setting(
        name="kv_role", choices=("producer", "consumer", "both"),
        spellings={"kv_producer": "producer", "kv_consumer": "consumer", "kv_both": "both"},
        help="role in disaggregated serving: a producer computes prompts and serves their KV cache, a consumer "
        "fetches it and generates answers",
    ),
    Setting(
        name="kv_host", default="127.0.0.1", env=("VLLM_NIXL_SIDE_CHANNEL_HOST",),
        help="address on which a producer listens; consumers must be able to reach it",
    ),
    Setting(
        name="kv_port", type="int", default=5600, low=1, high=65535, env=("VLLM_NIXL_SIDE_CHANNEL_PORT",),
        help="port on which a producer listens for consumers",
    ),
    Setting(
        name="kv_peers", type="list",
        help="producers from which a consumer may fetch, as host:port,host:port; it connects to no others",
    ),
    Setting(
        name="kv_timeout", type="float", default=10.0, low=0.01, high=600,
        help="seconds that a request waits for fetched blocks, or for a message from the producer that computes "
        "them; then it computes its prompt here",
    ),
    Setting(
        name="kv_transfer_config", type="json",
        help='vLLM\'s name of these: {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}',
    ),
)  # fmt: skip
