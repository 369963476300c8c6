"""Every hook a plugin may implement. Declaring hooks yield frozen offers; none of them is called in a hot loop.

Specs only grow. Each hook stands in docs/hooks.md with an example.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

from lsv.offers import (
    AttentionOffer,
    CheckpointOffer,
    CommandOffer,
    DrafterOffer,
    ExecutorOffer,
    FamilyOffer,
    FrontendOffer,
    GrammarOffer,
    KernelOffer,
    KVTransportOffer,
    LogitsProcessorOffer,
    MediaOffer,
    ModelAlias,
    ModelOffer,
    PartOffer,
    PlacerOffer,
    PlatformOffer,
    PolicyOffer,
    ProcessorOffer,
    QuantizerOffer,
    ReasoningParserOffer,
    ToolParserOffer,
)

if TYPE_CHECKING:
    from lsv.config import EngineConfig
    from lsv.request.outputs import RequestRecord
    from lsv.settings import Setting

spec = pluggy.HookspecMarker("lsv")


@spec
def lsv_settings() -> Iterable[Setting]:
    """Options: one declaration gives the flag, the config-file key and the ``LSV_`` variable."""
    return ()


@spec
def lsv_commands() -> Iterable[CommandOffer]:
    """Sub-commands of ``lsv``."""
    return ()


@spec
def lsv_platforms() -> Iterable[PlatformOffer]:
    """Kinds of hardware."""
    return ()


@spec
def lsv_attention() -> Iterable[AttentionOffer]:
    """Attention backends."""
    return ()


@spec
def lsv_kernels() -> Iterable[KernelOffer]:
    """Implementations of ops, read in the worker once the device is open."""
    return ()


@spec
def lsv_quantizers() -> Iterable[QuantizerOffer]:
    """Weight formats."""
    return ()


@spec
def lsv_models() -> Iterable[ModelOffer]:
    """Model architectures."""
    return ()


@spec
def lsv_processors() -> Iterable[ProcessorOffer]:
    """How families take images, audio and video."""
    return ()


@spec
def lsv_media() -> Iterable[MediaOffer]:
    """What fetches and decodes the media of requests."""
    return ()


@spec
def lsv_logits_processors() -> Iterable[LogitsProcessorOffer]:
    """Code that changes the logits of requests that ask for it."""
    return ()


@spec
def lsv_tool_parsers() -> Iterable[ToolParserOffer]:
    """Forms in which models write calls of tools."""
    return ()


@spec
def lsv_reasoning_parsers() -> Iterable[ReasoningParserOffer]:
    """Forms in which models think before they answer."""
    return ()


@spec
def lsv_grammars() -> Iterable[GrammarOffer]:
    """What keeps answers to a schema, a regular expression or a grammar."""
    return ()


@spec
def lsv_drafters() -> Iterable[DrafterOffer]:
    """What proposes tokens that a later step verifies."""
    return ()


@spec
def lsv_families() -> Iterable[FamilyOffer]:
    """What libraries know of families of models."""
    return ()


@spec
def lsv_model_aliases() -> Iterable[ModelAlias]:
    """Short names for checkpoints that ship inside a package."""
    return ()


@spec
def lsv_policies() -> Iterable[PolicyOffer]:
    """Scheduling orders."""
    return ()


@spec
def lsv_executors() -> Iterable[ExecutorOffer]:
    """Ways to run workers."""
    return ()


@spec
def lsv_parts() -> Iterable[PartOffer]:
    """What takes part in every engine beside its scheduler."""
    return ()


@spec
def lsv_placers() -> Iterable[PlacerOffer]:
    """What finds machines for replicas."""
    return ()


@spec
def lsv_kv_transports() -> Iterable[KVTransportOffer]:
    """What keeps contents of the KV cache outside the engine."""
    return ()


@spec
def lsv_checkpoints() -> Iterable[CheckpointOffer]:
    """Checkpoint formats."""
    return ()


@spec
def lsv_frontends() -> Iterable[FrontendOffer]:
    """What ``lsv serve`` can run in front of an engine."""
    return ()


@spec
def lsv_check_config(config: EngineConfig) -> Iterable[str]:
    """Problems with a resolved configuration, one sentence each; all plugins' problems are shown together."""
    return ()


@spec
def lsv_engine_started(config: EngineConfig) -> None:
    """An engine is ready."""


@spec
def lsv_engine_stopped(config: EngineConfig) -> None:
    """An engine has stopped."""


@spec
def lsv_request_finished(record: RequestRecord) -> None:
    """A request has ended; called once for each, in the process of the client that sent it."""
