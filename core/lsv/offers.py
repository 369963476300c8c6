"""What plugins declare: frozen records whose heavy code is named as a string and imported only when chosen."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from lsv.capabilities import DeviceInfo, Layout
from lsv.config import EngineConfig
from lsv.config import ModelPart as ModelPart
from lsv.request.calls import CallForm as CallForm
from lsv.request.media import Modality
from lsv.request.media_needs import MediaNeeds
from lsv.request.pooling import PoolingKind

Stage = Literal["constraints", "processors"]
"""Where in the sampling chain a logits processor stands; see ``LogitsProcessorOffer``."""


class OpSpec(msgspec.Struct, frozen=True):
    """What a module asks of a kernel: the op's name and the numbers a kernel may care about."""

    op: str
    dtype: str
    format: str = "plain"
    """How the weights are stored."""
    shape: Mapping[str, int] = {}
    flags: frozenset[str] = frozenset()
    adapters: bool = False
    """Whether layers below the module have slots for adapters."""


class PlatformOffer(msgspec.Struct, frozen=True):
    """A platform."""

    name: str
    load: str
    """A ``lsv.platform.Platform``."""
    probe: Callable[[], tuple[DeviceInfo, ...]]
    """Looks for devices, without torch."""
    rank: int = 0
    """Among the platforms that find a device, the one with the highest rank is the default."""
    explain: Callable[[], str] | None = None
    """Where there is no device: what was looked for, what was found, and how to install what is missing."""
    emulation: str | None = None
    """What ``--emulate`` opens: the same code on the host's memory, with a fake that answers the vendor's calls."""
    tools: tuple[tuple[str, ...], ...] = ()
    """The vendor's commands whose output belongs in a bug report, where they are installed."""
    resource: str = "GPU"
    """What Ray calls a device, as it counts them on the machines of a cluster; empty for the host's own cores."""


class AttentionOffer(msgspec.Struct, frozen=True):
    """An attention backend."""

    name: str
    load: str
    """A ``lsv.attention.AttentionBackend``."""
    block_sizes: tuple[int, ...]
    """The sizes of cache blocks it takes, in tokens; the first is the default."""
    platforms: tuple[str, ...] = ()
    """Where it runs; empty is anywhere."""
    layout: Layout = "flat"
    """The layout of the steps it takes."""
    missing: Callable[[], str | None] | None = None
    """What it lacks to run here, or None; a platform's first backend that lacks nothing is its default. No torch."""
    dtypes: tuple[str, ...] = ()
    """Of the steps it takes; empty is any."""
    kv_dtypes: tuple[str, ...] = ()
    """Of the caches it has, ``"auto"`` for the steps' own; empty is any."""
    aliases: tuple[str, ...] = ()
    """Other names for it, which several backends may share: the platform's first that can run is meant."""
    row_invariant: bool = False
    """Whether a row's result is the same in any company."""


class KernelOffer(msgspec.Struct, frozen=True):
    """An implementation of one op on one platform."""

    op: str
    platform: str
    """``"*"`` is any."""
    load: str
    """A callable ``(module, spec) -> kernel``; see ``lsv.ops``."""
    supports: Callable[[OpSpec], str | None]
    """Answers None, or why not."""
    row_invariant: bool = False
    """Whether a row's result is the same in any company."""
    rank: int = 0
    """Kernels of the highest rank are asked first."""
    unwanted: Callable[[EngineConfig], str | None] | None = None
    """Looks at the whole configuration: None, or why the kernel is not bound for it at all."""
    adapters: bool = False
    """Of a kernel for several layers: whether it leaves steps with adapters to the layers themselves."""
    looks_up: bool = False
    """Of a kernel for a linear layer: whether it is a ``lsv.ops.TableKernel``, which ``looked_up`` layers need."""


class QuantizerOffer(msgspec.Struct, frozen=True):
    """A weight format."""

    name: str
    load: str
    """A ``lsv.weights.quantizer.Quantizer``, or what makes one."""
    recognises: Callable[[Mapping[str, Any]], bool] | None = None
    """Whether config.json's ``quantization_config`` is of this format."""
    online: bool = False
    """Whether it quantises a plain checkpoint while it is loaded."""
    experts: bool = False
    """Whether it quantises nothing but experts, so that a model must have some."""
    note: str = ""
    """What those who choose it should know; the log says it."""
    costs: int = 0
    """By how many per cent it raises the perplexity of a small real model that was plain. The log says it."""
    aliases: tuple[str, ...] = ()
    """Other names for what it recognises."""
    file: str = ""
    """The file beside config.json that holds older checkpoints' ``quantization_config``, of this format."""
    calibrate: str = ""
    """``(EngineConfig, path of a text) -> folder``, for ``--quantization-calibration``: writes the model in this
    format, fitted to the text, as a checkpoint that is served instead. Empty where the format can't be fitted.
    """


class ModelOffer(msgspec.Struct, frozen=True):
    """Architectures that one class serves."""

    name: str
    architectures: tuple[str, ...]
    """Names from config.json's ``architectures``."""
    load: str
    tasks: tuple[str, ...] = ("generate",)
    """What it is known to be good for; ``lsv models`` shows it."""
    modalities: tuple[str, ...] = ("text",)
    """What it takes."""
    unstable: Mapping[str, str] = {}
    """Dtypes it can't run in, each with the reason; they are refused."""
    fallback: bool = False
    """Whether it serves architectures that no other model offers."""
    adapts: bool = False
    """Whether it runs another library's code of the architecture."""
    block_size: int | None = None
    """Tokens of a cache block that suit it; None leaves it to the attention backend. A page holds a recurrent layer's
    state or so many tokens, and what the smaller one leaves of it is lost."""
    causal: bool = True
    """Whether a token sees only those before it. Where it sees all, nothing is cached and steps take whole prompts."""
    pooling: PoolingKind = "last"
    """How prompts are pooled where the checkpoint does not say."""
    encodes: bool = False
    """Whether prompts are texts that it encodes, and answers attend to them; see ``lsv.request.encoded``."""
    positions: int | None = None
    """How many positions checkpoints have, rope scaling included, whose config.json leaves that out."""
    unused_positions: int = 0
    """How many of ``max_position_embeddings`` no token is ever at."""
    bounded_positions: bool = False
    """Whether positions are rows of a table, so that there are none past its end."""
    stop_tokens: tuple[str, ...] = ()
    """Tokens that end its answers although the checkpoint's files do not say so; those that the tokenizer has."""
    note: str = ""
    """What those who choose it should know; the log says it."""
    parts: tuple[ModelPart, ...] = ()
    """What of it may lie in checkpoints of their own. A tensor that the model's own has, too, is that one's."""
    further: str | None = None
    """Names the ``lsv.drafts.reader.StateReader`` of layers in the same checkpoint that predict further tokens."""
    divisible: bool = True
    """Whether the language model of a model that takes media answers texts alone as the whole does."""
    media_needs: MediaNeeds = MediaNeeds()
    """What its media need; without it the language model is served alone."""
    told_by: Mapping[str, str] = {}
    """Other families' architectures that its checkpoints name, each with the key of config.json that only these have,
    or a value (``a.b=c``); the first of ``architectures`` is meant then."""


class FamilyOffer(msgspec.Struct, frozen=True):
    """What a library knows of families of models by the names in their config.json."""

    name: str
    load: str
    """A light ``() -> lsv.resolve.architecture.families.Families``, called where no model offers an architecture."""


class ProcessorOffer(msgspec.Struct, frozen=True):
    """How a family's architectures take media; see ``lsv.media.processor``."""

    name: str
    architectures: tuple[str, ...]
    modalities: tuple[Modality, ...]
    load: str
    """Makes the part that prepares media."""
    place: str
    """Makes the part that places them in prompts; imported where prompts are made, so it must be light."""
    transcribe: str | None = None
    """Of families that transcribe speech, see ``lsv.media.transcriber``; light as well."""
    adapts: bool = False
    """Whether it serves every model that runs another library's code, takes media and has no processor of its own."""


class MediaOffer(msgspec.Struct, frozen=True):
    """What fetches and decodes the media of requests, for models of every family; see ``lsv.media.service``."""

    name: str
    load: str
    """Names a ``(config, catalog, options) -> MediaService``, made where ``lsv serve`` runs; light to import."""
    offline: str
    """Names a ``(config, catalog, options) -> OfflineMedia``, made by ``LLM`` at the first prompt with media."""


class LogitsProcessorOffer(msgspec.Struct, frozen=True):
    """Code that changes the logits of requests that ask for it, in ``SamplingParams.logits_processors``."""

    name: str
    """What requests ask for it by; of two processors of one stage, the first by name goes first."""
    load: str
    """Names an ``lsv.logits_processor.LogitsProcessor``, a ``(config, vocab_size, device)``."""
    stage: Stage = "processors"
    """``"constraints"`` go first of all: before allowed ids, bad words, bias and penalties. ``"processors"`` see the
    logits that these leave, before temperature, top-k, top-p and min-p."""
    arguments: str | None = None
    """Names the msgspec type of a request's arguments. Clients import it, so it is light. None takes any, unchecked."""


class AnswerParserOffer(msgspec.Struct, frozen=True):
    """A form that families write parts of their answers in; see ``lsv.text.answer_parser``."""

    name: str
    load: str
    """Names a ``(AnswerForm) -> AnswerParser``, made for every answer; light to import."""
    marks: tuple[str, ...] = ()
    """What it looks for; special tokens among these are shown to it, and left out of what readers see."""
    templates: tuple[str, ...] = ()
    """Texts that a chat template has, all of them, where it is the right one; empty: it is not chosen by itself."""
    architectures: tuple[str, ...] = ()
    """Names from config.json's ``architectures`` that it is for; empty is any."""
    aliases: tuple[str, ...] = ()
    derives: bool = False
    """Whether ``load`` names a ``(lsv.text.round_trip.Write) -> lsv.text.answer_parser.ModelParser | None``."""


class ToolParserOffer(AnswerParserOffer, frozen=True):
    """A form of calls of tools."""

    form: CallForm | None = None
    """What grammars must know of it; None where no schema can be kept to while the model decides whether it calls."""
    short_ids: bool = False
    """Whether chat templates want ids of calls to be nine letters and digits."""


class ReasoningParserOffer(AnswerParserOffer, frozen=True):
    """A form of thinking that stands before an answer."""


class GrammarOffer(msgspec.Struct, frozen=True):
    """A back end that says which tokens may follow where an answer must have a form."""

    name: str
    """What requests and operators ask for it by."""
    load: str
    """Names a ``(vocabulary) -> lsv.grammars.grammar.GrammarBackend``, made in the engine at the first use."""
    rank: int = 0
    """The one with the highest rank is the default."""
    aliases: tuple[str, ...] = ()
    """Names of back ends that it replaces if no plugin offers them."""


class DrafterOffer(msgspec.Struct, frozen=True):
    """What proposes tokens that a later step verifies."""

    name: str
    """What ``--speculative-config`` names it by, as its method."""
    load: str
    """Names a ``lsv.drafts.drafter.Drafter``, a ``(Drafts)``, made in the worker."""
    options: tuple[str, ...] = ()
    """The keys of ``--speculative-config`` that it takes beside those of all drafters."""
    needs: Literal["nothing", "model", "heads"] = "nothing"
    """The checkpoint that it drafts with: a language model, heads on the states of the target model, or none."""
    aliases: tuple[str, ...] = ()
    """Other names of it."""
    model_types: tuple[str, ...] = ()
    """``model_type`` of the heads' config.json, by which the method is known where only the checkpoint is named."""
    architectures: tuple[str, ...] = ()
    """The same of ``architectures``."""
    within: bool = False
    """Whether it drafts by further layers of the target model's own checkpoint (``ModelOffer.further``)."""
    places: tuple[str, ...] = ()
    """The keys of the heads' config.json, any of which says how many tokens they draft; none for as many as wanted."""


class PolicyOffer(msgspec.Struct, frozen=True):
    """A scheduling order."""

    name: str
    load: str


class ExecutorOffer(msgspec.Struct, frozen=True):
    """A way to run workers: in this process, in processes of their own, on other machines."""

    name: str
    load: str


class PlacerOffer(msgspec.Struct, frozen=True):
    """What finds machines for the replicas of a server and runs an engine on each, by ``--data-parallel-backend``."""

    name: str
    load: str
    """Names a ``(config, catalog) -> lsv.engine.replicas.nodes.placer.Placer``, made in a process of its own."""


class KVTransportOffer(msgspec.Struct, frozen=True):
    """What keeps contents of the KV cache outside the engine."""

    name: str
    load: str
    """Names a ``(lsv.transports.Site) -> lsv.transports.Transport``, made in the engine's process and in each worker;
    light to import."""
    switch: str
    """The setting of the plugin's that asks for it by having a value; its folder, say."""
    exchange: str = ""
    """Names a ``(lsv.transports.exchange.Seat) -> lsv.transports.exchange.Exchange``, made in the engine's process for
    ``--kv-role``; empty where what it keeps can't be handed on."""


class CheckpointOffer(msgspec.Struct, frozen=True):
    """A checkpoint format."""

    name: str
    recognises: Callable[[str], bool]
    """Whether a local path is of this format."""
    load: str
    """``(path) -> CheckpointSource``."""
    prepare: str | None = None
    """``(path) -> folder``, for a format that is not a folder with config.json and a tokenizer: makes such a folder for
    ``load``."""
    single_files: str = ""
    """A pattern of files that are models by themselves, such as ``*.ggml``: of a hub's repository of many, only the one
    that was named is fetched."""
    beside: str = ""
    """A pattern of files of this form that are no models, but lie beside them."""


class ModelAlias(msgspec.Struct, frozen=True):
    """A short name for a checkpoint that ships inside a package."""

    name: str
    locate: Callable[[], str]
    """Gives its directory."""
    default: bool = False
    """Whether it is served when no model is named."""
    held_out: Callable[[int, int], tuple[Sequence[Mapping[str, Any]], str]] | None = None
    """``(count, seed)`` to as many questions, in the form of ``lsv eval``, and a text; none of them was trained on."""
    adapters: Mapping[str, Callable[[], str]] = {}
    """Give the directories of adapters that ship with it: ``--lora-modules`` finds them as ``<alias>:<name>``."""


class CommandOffer(msgspec.Struct, frozen=True):
    """``lsv <name>``."""

    name: str
    load: str
    """``(arguments: list[str], context) -> int``, the exit code."""
    help: str


class FrontendOffer(msgspec.Struct, frozen=True):
    """Something that ``lsv serve`` runs in front of an engine."""

    name: str
    load: str
    """``async (service, settings) -> None``."""
    default: bool = False
    """Whether it always runs."""
    switch: str | None = None
    """The setting that turns on one that does not always run."""
    processes: str | None = None
    """The setting for its number of processes. If there are several, each opens its own clients
    (``lsv.engine.connect``), and the clients of the given service carry no requests."""
    explain: str | None = None
    """``(config, settings) -> Iterable[tuple[str, str]]``: findings about a model, for ``lsv doctor MODEL``."""
    check: str | None = None
    """``(settings) -> None``, called before an engine is started: raises ``ConfigError`` for what would be refused."""


def load_object(name: str) -> Any:
    """The object behind ``"package.module:attribute"``."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def lazy(name: str) -> Callable[[Any], Any]:
    """The function behind ``"package.module:attribute"``, which is imported when it is first asked something.

    So a light manifest can say who answers for a heavy kernel: ``supports=lazy("lsv_mine.kernels:why_not")``.
    """

    def ask(about: Any) -> Any:
        return load_object(name)(about)

    return ask
