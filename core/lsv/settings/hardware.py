"""The options of what an engine runs on: platform, ranks and replicas."""

from __future__ import annotations

from lsv.settings.setting import Setting, grouped

CLUSTER_KEY = Setting(
    name="cluster_key",
    help="secret that all machines of a server share, and servers with a --kv-role; better as LSV_CLUSTER_KEY, which "
    "other users of a machine can't see",
)

HARDWARE = grouped(
    "Platform and parallelism",
    "engine",
    Setting(
        name="platform", default="auto", aliases=("device",),
        help="kind of hardware; auto takes the highest-ranked with a device", main=True
    ),
    Setting(
        name="emulate", type="bool", default=False,
        help="run the platform's own code without its device: slow, for tests and for trying settings out", main=True
    ),
    Setting(
        name="executor", aliases=("distributed_executor_backend",), default="auto",
        spellings={"mp": "processes", "uni": "auto"},
        help="what runs the workers: inline, processes, nodes or that of a plugin; auto is processes for several "
        "devices, nodes for several machines"
    ),
    Setting(
        name="tensor_parallel_size", type="int", default=1, low=1, short=("-tp",),
        help="devices that share each layer", main=True
    ),
    Setting(
        name="pipeline_parallel_size", type="int", default=1, low=1, short=("-pp",),
        help="stages the layers are spread over, of --tensor-parallel-size devices each"
    ),
    Setting(
        name="enable_expert_parallel", type="bool", default=False,
        help="ranks of --tensor-parallel-size have some experts of a layer whole, instead of a part of each; with "
        "--data-parallel-size those of all replicas share them",
    ),
    Setting(
        name="expert_map",
        help="rank of each of a layer's experts, as JSON or a file that holds it: [0,1,0,1] for all layers that have "
        "experts, or a list of such lists, one for each (default: evenly, by number)",
    ),
    Setting(
        name="enable_eplb", type="bool", default=False,
        help="count which experts are chosen, and exchange them between the ranks of --enable-expert-parallel so that "
        "these have as much to do as each other",
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
        help="how many layers each stage has, as in 14,10 (default: so that stages cost alike)",
    ),
    Setting(
        name="data_parallel_size", type="int", default=1, low=1, aliases=("dp",), short=("-dp",),
        help="copies of the model that share the requests, each on devices of its own",
    ),
    Setting(
        name="data_parallel_size_local", type="int", low=0,
        help="how many of these copies are on this machine (default: all, or those that --nnodes leaves to it)",
    ),
    Setting(
        name="data_parallel_start_rank", type="int", low=0,
        help="the first of these copies on this machine, where others are on machines before it",
    ),
    Setting(
        name="data_parallel_address",
        help="address of the machine that serves, where others with copies join it (default: with --nnodes, "
        "--master-addr)",
    ),
    Setting(
        name="data_parallel_rpc_port", type="int", default=29550, low=1, high=65535,
        help="port at which they join it, with --nnodes too where none of them is larger than a machine",
    ),
    Setting(
        name="data_parallel_backend", default="mp",
        help="what runs the copies: mp (processes, on machines that are started with them), or one that finds machines "
        "for them, such as ray",
    ),
    Setting(
        name="data_parallel_hybrid_lb", type="bool", default=False,
        help="every machine serves the copies that it has, and something else spreads requests over the machines",
    ),
    Setting(
        name="data_parallel_external_lb", type="bool", default=False,
        help="this server has one copy, --data-parallel-rank, and something else spreads requests over the servers",
    ),
    Setting(
        name="data_parallel_rank", type="int", low=0,
        help="which of the copies this server has, as its only one",
    ),
    Setting(
        name="nnodes", type="int", default=1, low=1,
        help="machines that the ranks of the model, or of all copies of -dp, are spread over; on each, lsv serve is "
        "started with the same options",
    ),
    Setting(
        name="node_rank", type="int", low=0,
        help="which of --nnodes this machine is; 0 serves (default: NODE_RANK, GROUP_RANK or SLURM_NODEID)",
    ),
    Setting(
        name="master_addr",
        help="address of the first of --nnodes, where the others join it (default: MASTER_ADDR)",
    ),
    Setting(
        name="master_port", type="int", low=1, high=65535,
        help="port at which the others join the first of --nnodes; copies of -dp that are larger than a machine have "
        "one each, from this on (default: MASTER_PORT, unless torchrun has set it, or 29501)",
    ),
    CLUSTER_KEY,
    Setting(
        name="node_timeout", type="float", default=600.0, low=1,
        help="seconds in which all machines of a server have to be there",
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
