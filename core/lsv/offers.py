"""What plugins declare: frozen records whose heavy code is named as a string and imported only when chosen."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from lsv.capabilities import DeviceInfo, Layout
from lsv.config import EngineConfig
from lsv.request.media import Modality

Stage = Literal["constraints", "processors"]
"""Where in the sampling chain a logits processor stands; see ``LogitsProcessorOffer``."""


class OpSpec(msgspec.Struct, frozen=True):
    """What a module asks of a kernel: the op's name and the numbers a kernel may care about."""

    op: str
    dtype: str
    format: str = "plain"
    shape: Mapping[str, int] = {}
    flags: frozenset[str] = frozenset()
    adapters: bool = False


class PlatformOffer(msgspec.Struct, frozen=True):
    """A platform. ``probe`` looks for devices without torch.

    Among the platforms that find any, the one with the highest ``rank`` is the default. ``explain`` says, where there
    is no device, what was looked for, what was found and how to install what is missing. ``emulation`` names a platform
    that runs the same code on the host's memory, with the vendor's calls answered by a fake: ``--emulate`` opens it.
    ``tools`` are the vendor's commands whose output belongs into a bug report, where they are installed.
    """

    name: str
    load: str
    probe: Callable[[], tuple[DeviceInfo, ...]]
    rank: int = 0
    explain: Callable[[], str] | None = None
    emulation: str | None = None
    tools: tuple[tuple[str, ...], ...] = ()


class AttentionOffer(msgspec.Struct, frozen=True):
    """An attention backend. ``block_sizes``: the first is the default; ``platforms`` empty means any.

    ``layout`` is that of the steps it takes, as in ``Capabilities``. ``missing`` says what it lacks to run here, or
    None; a platform's first backend that lacks nothing is the default. It imports no torch.
    """

    name: str
    load: str
    block_sizes: tuple[int, ...]
    platforms: tuple[str, ...] = ()
    layout: Layout = "flat"
    missing: Callable[[], str | None] | None = None


class KernelOffer(msgspec.Struct, frozen=True):
    """An implementation of one op on one platform (``"*"`` for any). ``supports`` answers None, or why not.

    ``load`` names a callable ``(module, spec) -> kernel``; see ``lsv.ops``. ``unwanted`` looks at the whole
    configuration: it answers None, or why the kernel is not to be bound for it at all.
    """

    op: str
    platform: str
    load: str
    supports: Callable[[OpSpec], str | None]
    row_invariant: bool = False
    rank: int = 0
    unwanted: Callable[[EngineConfig], str | None] | None = None


class QuantizerOffer(msgspec.Struct, frozen=True):
    """A weight format.

    ``recognises`` gets config.json's ``quantization_config``; ``online`` says that it quantises a plain checkpoint.
    ``note`` is what a user should know who chooses it, for the log. ``aliases`` are other names for what it recognises.
    """

    name: str
    load: str
    recognises: Callable[[Mapping[str, Any]], bool] | None = None
    online: bool = False
    note: str = ""
    aliases: tuple[str, ...] = ()


class ModelOffer(msgspec.Struct, frozen=True):
    """Architectures one class serves (names from config.json's ``architectures``).

    ``dtypes`` lists allowed dtypes, the first is preferred; a dtype in ``unstable`` is refused with its reason.
    """

    name: str
    architectures: tuple[str, ...]
    load: str
    tasks: tuple[str, ...] = ("generate",)
    modalities: tuple[str, ...] = ("text",)
    unstable: Mapping[str, str] = {}
    fallback: bool = False


class ProcessorOffer(msgspec.Struct, frozen=True):
    """How a family's architectures take media. ``load`` and ``place`` name what makes the two parts of it, see
    ``lsv.media.processor``; ``place`` is imported where prompts are made, so it must be light. So is ``transcribe``,
    which families that transcribe speech have, see ``lsv.media.transcriber``.
    """

    name: str
    architectures: tuple[str, ...]
    modalities: tuple[Modality, ...]
    load: str
    place: str
    transcribe: str | None = None


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
    """Names an ``lsv.nn.logits_processor.LogitsProcessor``, a ``(config, vocab_size, device)``."""
    stage: Stage = "processors"
    """``"constraints"`` go first of all: before allowed ids, bad words, bias and penalties. ``"processors"`` see the
    logits that these leave, before temperature, top-k, top-p and min-p."""
    arguments: str | None = None
    """Names the msgspec type that a request's arguments are read as, in the client and in the worker, so it is light;
    None takes what msgspec can send, unchecked."""


class PolicyOffer(msgspec.Struct, frozen=True):
    """A scheduling order."""

    name: str
    load: str


class ExecutorOffer(msgspec.Struct, frozen=True):
    """A way to run workers: in this process, in processes of their own, on other machines."""

    name: str
    load: str


class CheckpointOffer(msgspec.Struct, frozen=True):
    """A checkpoint format. ``recognises`` gets a local path; ``load`` names a ``(path) -> CheckpointSource``.

    A format that is not a folder with a config.json and a tokenizer has ``prepare``, which names a ``(path) -> folder``
    that makes one; ``load`` then gets that folder.
    """

    name: str
    recognises: Callable[[str], bool]
    load: str
    prepare: str | None = None


class ModelAlias(msgspec.Struct, frozen=True):
    """A short name for a checkpoint that ships inside a package; ``locate`` gives its directory.

    ``held_out`` takes a number of questions and a seed and gives that many questions, as ``lsv eval`` reads them, and a
    text: nothing of both was trained on.
    """

    name: str
    locate: Callable[[], str]
    default: bool = False
    held_out: Callable[[int, int], tuple[Sequence[Mapping[str, Any]], str]] | None = None


class CommandOffer(msgspec.Struct, frozen=True):
    """``lsv <name>``. ``load`` names ``(arguments: list[str], context) -> int``."""

    name: str
    load: str
    help: str


class FrontendOffer(msgspec.Struct, frozen=True):
    """Something ``lsv serve`` runs in front of an engine. ``load`` names ``async (service, settings) -> None``.

    ``default`` ones always run, others when the setting that ``switch`` names is on.
    """

    name: str
    load: str
    default: bool = False
    switch: str | None = None


def load_object(name: str) -> Any:
    """The object behind ``"package.module:attribute"``."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def later(name: str) -> Callable[[Any], Any]:
    """The function behind ``"package.module:attribute"``, which is imported when it is first asked something.

    So a light manifest can say who answers for a heavy kernel: ``supports=later("lsv_mine.kernels:why_not")``.
    """

    def ask(about: Any) -> Any:
        return load_object(name)(about)

    return ask
