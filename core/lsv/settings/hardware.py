"""The options of what an engine runs on: platform, ranks and replicas."""

from __future__ import annotations

from lsv.settings.setting import Setting, grouped

CLUSTER_KEY = Setting(
    name="cluster_key",
    help="secret shared by all machines of a server, and by servers with a --kv-role; better set as "
    "LSV_CLUSTER_KEY, which other users of a machine can't see",
)

HOST_IP = Setting(
    name="host_ip", env=("VLLM_HOST_IP",),
    help="this machine's own address among several, for its connections to the others (default: the address on the "
    "network that leads to node 0)",
)  # fmt: skip

HARDWARE = grouped(
    "Platform and parallelism",
    "engine",
    Setting(
        name="platform", default="auto", aliases=("device",),
        help="kind of hardware; auto uses the highest-ranked one with a device", main=True
    ),
    Setting(
        name="emulate", type="bool", default=False,
        help="run the platform's own code without its device: slow, for tests and for trying out settings", main=True
    ),
    Setting(
        name="executor", aliases=("distributed_executor_backend",), default="auto",
        spellings={"mp": "processes", "uni": "auto"},
        help="executor of the workers: inline, processes, nodes or a plugin's; auto is processes for several "
        "devices, nodes for several machines"
    ),
    Setting(
        name="tensor_parallel_size", type="int", default=1, low=1, short=("-tp",),
        help="devices that share each layer", main=True
    ),
    Setting(
        name="pipeline_parallel_size", type="int", default=1, low=1, short=("-pp",),
        help="number of pipeline stages, of --tensor-parallel-size devices each"
    ),
    Setting(
        name="enable_expert_parallel", type="bool", default=False,
        help="give each rank of --tensor-parallel-size some whole experts of a layer instead of a part of every "
        "expert; with --data-parallel-size, spread them over the ranks of all replicas",
    ),
    Setting(
        name="expert_map",
        help="rank of each expert of a layer, as JSON or a file with it: [0,1,0,1] for all layers with experts, or "
        "a list of such lists, one for each layer (default: evenly, by number)",
    ),
    Setting(
        name="enable_eplb", type="bool", default=False,
        help="count how often experts are chosen, and move them between the ranks of --enable-expert-parallel to "
        "balance the load",
    ),
    Setting(
        name="eplb_config", type="json",
        help='steps of --enable-eplb: {"window_size": counted (1000), "step_interval": from one exchange to the next '
        "(3000)}",
    ),
    Setting(name="eplb_window_size", type="int", low=1, help="window_size of --eplb-config"),
    Setting(name="eplb_step_interval", type="int", low=1, help="step_interval of --eplb-config"),
    Setting(
        name="pipeline_layer_partition", env=("VLLM_PP_LAYER_PARTITION",),
        help="number of layers in each stage, as in 14,10 (default: so that stages have equal cost)",
    ),
    Setting(
        name="data_parallel_size", type="int", default=1, low=1, aliases=("dp",), short=("-dp",),
        help="number of replicas of the model that share the requests, each on its own devices",
    ),
    Setting(
        name="data_parallel_size_local", type="int", low=0,
        help="number of these replicas on this machine (default: all, or as --nnodes distributes them)",
    ),
    Setting(
        name="data_parallel_start_rank", type="int", low=0,
        help="the first of these replicas on this machine, if earlier ones are on other machines",
    ),
    Setting(
        name="data_parallel_address",
        help="address of the machine that serves, which other machines with replicas join (default: with --nnodes, "
        "--master-addr)",
    ),
    Setting(
        name="data_parallel_rpc_port", type="int", default=29550, low=1, high=65535,
        help="port at which they join it, also with --nnodes if no replica is larger than a machine",
    ),
    Setting(
        name="data_parallel_backend", default="mp",
        help="how replicas are started: mp (processes, on machines that you start), or a back end that finds "
        "machines, such as ray",
    ),
    Setting(
        name="data_parallel_hybrid_lb", type="bool", default=False,
        help="every machine serves its own replicas, and an external load balancer distributes requests over the "
        "machines",
    ),
    Setting(
        name="data_parallel_external_lb", type="bool", default=False,
        help="this server has one replica, --data-parallel-rank, and an external load balancer distributes requests "
        "over the servers",
    ),
    Setting(
        name="data_parallel_rank", type="int", low=0,
        help="number of this server's only replica",
    ),
    Setting(
        name="nnodes", type="int", default=1, low=1,
        help="number of machines for the ranks of the model, or for all replicas of -dp; start lsv serve on each "
        "with the same options",
    ),
    Setting(
        name="node_rank", type="int", low=0,
        help="number of this machine among --nnodes; 0 serves (default: NODE_RANK, GROUP_RANK or SLURM_NODEID)",
    ),
    Setting(
        name="master_addr",
        help="address of the first of --nnodes, which the others join (default: MASTER_ADDR)",
    ),
    Setting(
        name="master_port", type="int", low=1, high=65535,
        help="port at which the others join the first of --nnodes; replicas of -dp that are larger than a machine "
        "use one port each, from this one on (default: MASTER_PORT, unless torchrun has set it, or 29501)",
    ),
    HOST_IP,
    CLUSTER_KEY,
    Setting(
        name="node_timeout", type="float", default=600.0, low=1,
        help="seconds within which all machines of a server must join",
    ),
    Setting(
        name="attention_backend", env=("VLLM_ATTENTION_BACKEND",),
        help="attention implementation (default: the platform's first)",
    ),
    Setting(name="reference_ops", type="bool", default=False, help="run the plain torch form of every op"),
    Setting(
        name="enforce_eager", type="bool", default=False,
        help="never capture or compile steps", main=True
    ),
)  # fmt: skip
