"""The resolved configuration of one engine: frozen, complete, and never changed after it was resolved."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from lsv.capabilities import Layout, Padding
from lsv.ranks.topology import ExpertOptions as ExpertOptions
from lsv.ranks.topology import Nodes as Nodes
from lsv.ranks.topology import ReplicaNodes as ReplicaNodes
from lsv.ranks.topology import Topology as Topology
from lsv.request.encoded import EncodedText
from lsv.request.media import Mutual
from lsv.request.pooling import Pooler

OptionValue = bool | int | float | str | None


class Reason(msgspec.Struct, frozen=True):
    """Why an option has its value: ``Reason("block_size", "128", "the attention backend allows only 128")``."""

    name: str
    value: str
    why: str


class Choices:
    """The reasons gathered while a configuration is resolved."""

    def __init__(self) -> None:
        self.reasons: list[Reason] = []

    def note(self, name: str, value: object, why: str) -> None:
        self.reasons.append(Reason(name, str(value), why))


Confinement = Literal["auto", "require", "off"]
"""How processes for untrusted data are confined: as far as possible, fully or the start fails, or not."""


class AdapterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How adapters are served."""

    slots: int = 1
    """Adapters that requests of one step may go through."""
    max_rank: int = 16
    host: int = 1
    """Adapters that a worker keeps on the host, those in slots among them."""
    dtype: str = "auto"
    """Of their matrices, by torch's name; ``"auto"`` is the model's."""
    modules: tuple[tuple[str, str], ...] = ()
    """The name and the folder of each adapter that is served from the start."""
    folder: str | None = None
    """A folder whose folders are adapters, served by their names when they are first asked for."""
    confinement: Confinement = "auto"
    """How the processes that read adapter files are confined."""


class DraftModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that drafts, or heads on the answering model's states. Other fields are as in ``EngineConfig``."""

    folder: str
    architecture: str
    wrapper: str = ""
    offer: str | None = None
    """The name of the ``ModelOffer`` that serves it; None for heads."""
    quantization: str | None = None
    """The name of the ``QuantizerOffer``; None is unquantised."""
    max_model_len: int
    """Nothing is drafted for sequences that are longer."""
    overrides: Mapping[str, Any] = {}


class Profiling(msgspec.Struct, frozen=True, kw_only=True):
    """How steps are profiled while somebody asks for it."""

    kind: str
    """``torch``, or ``calls`` for VizTracer, or ``device``: the vendor's, under which the process runs, is told."""
    folder: str
    """Where profiles are written, but for the vendor's."""
    stacks: bool = False
    """Whether functions of Python are recorded, too, which takes much longer."""
    record_shapes: bool = False
    memory: bool = False
    flops: bool = False
    compressed: bool = True


class Traces(msgspec.Struct, frozen=True, kw_only=True):
    """Where spans of requests are sent."""

    endpoint: str
    """A URL."""
    protocol: str
    """``grpc`` or ``http/protobuf``."""


class Drafts(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are drafted that a later step verifies; see ``lsv_runtime.drafts``."""

    drafter: str
    """The name of the ``DrafterOffer``."""
    most: int
    """The most tokens that are drafted at a time."""
    options: Mapping[str, Any] = {}
    """What the drafter is told."""
    model: DraftModel | None = None
    """What it drafts by; None for a drafter that needs no checkpoint."""
    rows: int | None = None
    """With more requests under way than these nothing is drafted; None is no limit."""
    longest: int | None = None
    """Nothing is drafted for sequences that would get longer; None is no limit beside that of what drafts."""
    typical: tuple[float, float] | None = None
    """Threshold and factor of ``lsv_runtime.drafts.typical``; None accepts what the model itself says, and nothing
    else.
    """
    adaptive: bool = True
    """Whether no more drafts are verified than pay, as far as measurements tell."""


class Transfers(msgspec.Struct, frozen=True, kw_only=True):
    """How engines hand each other what they have computed of prompts; see ``lsv.transports.exchange``."""

    produces: bool
    """Whether others may have what it keeps."""
    consumes: bool
    """Whether it fetches what others keep, where a request says so."""
    host: str
    """The address where others reach it, and that it listens at where it ``produces``."""
    port: int
    peers: tuple[str, ...]
    """Those it fetches from, as ``join_address`` writes them: no request makes it connect anywhere else."""
    timeout: float
    """Seconds that a request waits for what is fetched, at most."""


class Offload(msgspec.Struct, frozen=True, kw_only=True):
    """What is behind the device's KV cache."""

    host_bytes: int = 0
    """Host memory for contents of blocks, of all ranks of a replica together."""
    transport: str | None = None
    """The name of the ``KVTransportOffer`` that keeps them elsewhere; None is nowhere."""
    transfers: Transfers | None = None
    """None for an engine that has nothing to do with others."""


class ModelPart(msgspec.Struct, frozen=True):
    """A part of a model whose weights may lie in a checkpoint of its own, which config.json names."""

    key: str
    """The key of config.json that names it: a folder, or a repository of the hub."""
    config: str
    """The key under which a model reads the part's own config.json."""
    place: str
    """What stands before the part's names of tensors among those of the model."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a model that may have a checkpoint of its own; see ``ModelPart``."""

    key: str
    place: str
    folder: str | None
    """The checkpoint's directory; None where the model's own has the part."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an engine process needs, decided before anything is loaded."""

    model: str
    """The checkpoint's directory."""
    parts: tuple[Part, ...] = ()
    """What of the model may lie in checkpoints of its own."""
    served_names: tuple[str, ...]
    """Names clients use; answers carry the first."""
    unlisted_names: tuple[str, ...] = ()
    """Further names that requests may use, but that are never shown, such as the model's path."""
    tokenizer: str
    """The tokenizer's directory, or the one file of it that is to be read."""
    stop_tokens: tuple[str, ...] = ()
    """Tokens that end an answer beside those that the checkpoint's files name; those that the tokenizer has."""
    generation: str | None = None
    """The directory whose generation_config.json recommends sampling parameters: None is the tokenizer's, "" none."""
    sampling: Mapping[str, Any] = {}
    """Sampling parameters for requests that do not say, over what is recommended."""
    architecture: str
    """As the checkpoint's config.json names it, or what it means."""
    wrapper: str = ""
    """The checkpoint's own architecture, where only the language model in it is served."""
    model_offer: str
    """The name of the ``ModelOffer`` that serves it."""
    platform: str
    emulate: bool = False
    """Whether the platform's code runs without its device."""
    device: int = 0
    """The index of the first rank's device."""
    attention: str
    """The name of the ``AttentionOffer``."""
    attention_next: tuple[str, ...] = ()
    """The offers to turn to, in this order, where that one can't serve a layer; none where it was asked for by name."""
    quantization: str | None = None
    """The name of the ``QuantizerOffer``; None is unquantised."""
    quantization_ignore: tuple[str, ...] = ()
    """Layers that stay unquantised, see ``lsv_runtime.weights.quantizer.is_ignored``."""
    load_format: str = "auto"
    """The checkpoint's format; ``"auto"`` recognises it, ``"dummy"`` is random weights."""
    remote_code: Confinement | None = None
    """How a process is confined that runs code of the checkpoint's tokenizer or config; None runs none."""
    loader: Mapping[str, Any] = {}
    """What the format's reader is told: ``pattern`` of ``sharded_state``."""
    dtype: str
    """Of weights and activations, by torch's name."""
    kv_dtype: str = "auto"
    """Of the KV cache; ``"auto"`` is ``dtype``."""
    kv_scales: str | None = None
    """A file with the cache's scales, see ``lsv_runtime.weights.kv_scales.read_file``; None is the checkpoint's own."""
    pooler: Pooler = Pooler()
    """What the model is for, and how it pools."""
    cached: bool = True
    """Whether there is a KV cache. Where tokens see those behind them there is none: a step computes whole prompts."""
    block_size: int
    """Tokens in a cache block."""
    max_model_len: int
    """Most tokens of a prompt and its answer."""
    max_num_seqs: int = 256
    """Most requests that run at once."""
    max_num_batched_tokens: int = 2048
    """Most tokens in a step."""
    max_queue: int = 4096
    """Most requests that wait; more are refused."""
    prefix_caching: bool = True
    offload: Offload | None = None
    """Where contents of the KV cache go; None where they stay on the device."""
    chunked_prefill: bool = True
    """Whether a prompt may be computed in several steps."""
    mixed_batches: bool = True
    """Whether a step may hold prompts and decoding rows together."""
    max_itl_ms: float | None = None
    """Milliseconds that steps of running requests should take at most while prompts enter; None is no limit."""
    policy: str = "fcfs"
    """The name of the ``PolicyOffer``."""
    grammars: str | None = None
    """The name of the ``GrammarOffer`` for requests that name none; None where there is none."""
    drafts: Drafts | None = None
    """What drafts tokens; None where nothing does."""
    executor: str = "inline"
    """The name of the ``ExecutorOffer``."""
    layout: Layout = "flat"
    """How the tokens of a step lie."""
    in_flight: int = 1
    """Steps that may be planned before the first of them has a result."""
    enforce_eager: bool = False
    """Whether the platform is kept from compiling and capturing steps."""
    memory_share: float | None = None
    """The share of the device's memory to use; None is the platform's own rule."""
    offload_bytes: int = 0
    """Bytes of decoder layers' weights that each rank may keep in the host's memory."""
    kv_bytes: int | None = None
    """Bytes of the KV cache, instead of what the platform's budget leaves."""
    num_blocks: int | None = None
    """Blocks of the KV cache, instead of what its bytes hold."""
    max_logprobs: int = 20
    """Most log probabilities a request may ask for at each position."""
    processed_logprobs: bool = False
    """Whether log probabilities are those that tokens are drawn by, instead of the model's own."""
    logits_processors: tuple[str, ...] = ()
    """Classes of batched logits processors, ``package.module:Class``, in the order in which they go."""
    adapters: AdapterOptions | None = None
    """None where none are served."""
    vocab_size: int | None = None
    """Size of the model's vocabulary; None if config.json does not say."""
    encoded: EncodedText | None = None
    """How prompts that are encoded become requests; None where the model reads a prompt as the answer's beginning."""
    encoder_cache_tokens: int = 16384
    """Embeddings of media that are kept, in tokens."""
    seed: int = 0
    """Of random weights, and of requests that bring none."""
    step_timeout: float = 300.0
    """Seconds after which a step counts as hung."""
    load_timeout: float = 1800.0
    """Seconds without progress after which a start counts as hung."""
    profiling: Profiling | None = None
    """None where nobody may ask for profiles."""
    traces: Traces | None = None
    """Where spans of requests are sent; None where there are none."""
    sleep_mode: bool = False
    """Whether the engine may be told to give its memory back."""
    reference_ops: bool = False
    """Whether every op runs in its plain torch form."""
    topology: Topology = Topology()
    experts: ExpertOptions | None = None
    """Where whole experts are; None where they are cut, or where nothing was said: evenly, and there to stay."""
    nodes: Nodes | None = None
    """None where all ranks are on this machine, or where an executor finds machines itself."""
    replica_nodes: ReplicaNodes | None = None
    """None where all replicas are on this machine."""
    plugins: tuple[str, ...] = ()
    """The plugins to load, by name."""
    options: Mapping[str, OptionValue] = {}
    """Plugins' settings by full name (``"cpu.threads"``)."""
    overrides: Mapping[str, Any] = {}
    """What is laid over the checkpoint's config.json."""
    reasons: tuple[Reason, ...] = ()
    """Why what was not asked for was chosen."""

    @property
    def cuts_prompts(self) -> bool:
        """Whether a step may compute several tokens that have others before them: a part of a prompt, or drafts."""
        return self.prefix_caching or self.chunked_prefill or self.drafts is not None

    @property
    def devices(self) -> int:
        """Devices of this machine that have ranks."""
        return self.topology.devices if self.nodes is None else self.nodes.each(self.topology)

    @property
    def beat_interval(self) -> float:
        """Seconds between the signs of life of an engine and its workers."""
        return min(1.0, self.step_timeout / 10)

    def replicas(self) -> tuple[EngineConfig, ...]:
        """What each replica's engine runs."""
        numbers = range(self.topology.data)
        return tuple(msgspec.structs.replace(self, topology=self.topology.of_replica(number)) for number in numbers)

    def local_replicas(self) -> tuple[EngineConfig, ...]:
        """Those of them that run on this machine."""
        return tuple(one for one in self.replicas() if one.topology.is_local)

    def fingerprint(self) -> str:
        """Sixteen hex digits that name this configuration; reasons do not count, and all replicas have the same."""
        plain = msgspec.structs.replace(self, reasons=(), topology=self.topology.anywhere, replica_nodes=None)
        return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()[:16]


class BoundOp(msgspec.Struct, frozen=True):
    """One line of ``lsv kernels``."""

    op: str
    implementation: str
    """The object that serves it, as ``"package.module:attribute"``, or ``"reference"``."""
    count: int
    """How many modules it serves."""
    why: str
    """Why it was bound, and what refused before it."""
    row_invariant: bool = False
    """Whether a row's result is the same in any company."""


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine turned out to hold once its model is loaded."""

    num_blocks: int
    """Blocks of the KV cache, without the null block."""
    block_size: int
    """Tokens in a block."""
    kv_bytes: int
    weight_bytes: int
    max_model_len: int
    vocab_size: int
    groups: tuple[Mapping[str, Any], ...] = ()
    """The cache's groups, each a ``lsv.kv.spec.KVGroup`` as builtins."""
    ops: tuple[BoundOp, ...] = ()
    padding: Padding | None = None
    """What prompts are padded to in a padded layout."""
    encoder_parts: int = 0
    """The pieces in which the model encodes an item of media; 0 for a model that takes text only."""
    mutual: Mutual = ""
    """Whose tokens see one another: a step has all of them that are left."""
    cores: frozenset[int] = frozenset()
    """The processor's cores that the model's threads may run on."""
    reasons: tuple[Reason, ...] = ()

    @property
    def kv_tokens(self) -> int:
        """Tokens of full-length requests that fit into the cache together with the media items they attend to.

        Every group but those of cross-attention and of states is taken to need a block for each block of tokens. Of a
        state group a request that is answered holds two: its state, and its last checkpoint.
        """
        sources: list[int] = [group["cross_len"] for group in self.groups if group.get("cross_len") is not None]
        states = len([group for group in self.groups if group["kind"] == "state"])
        columns = -(-self.max_model_len // self.block_size)
        fixed = 2 * states + sum(-(-source // self.block_size) for source in sources)
        if states:
            growing = len(self.groups) - len(sources) - states
            needed = growing * columns + fixed
            return self.num_blocks * columns // needed * self.block_size
        growing = max(1, len(self.groups) - len(sources))
        own = growing * columns
        return self.num_blocks * own // (own + fixed) // growing * self.block_size

    @property
    def state_bytes(self) -> int:
        """Bytes of the states of a request, in all recurrent layers of a rank together."""
        sizes: list[int] = [group.get("state_bytes", 0) * len(group["layers"]) for group in self.groups]
        return sum(sizes)
