"""A media worker: ``python -m lsv_multimodal.worker.main FD PARENT``, a side process that prepares media."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lsv import plugins
from lsv_base.errors import LsvError, PluginError, RequestFailed
from lsv_base.processes.side.main import Loaded, run
from lsv_multimodal.worker.messages import Command, Init, Measure, Measured, Prepare, Reply, SplitAudio

if TYPE_CHECKING:
    from lsv_multimodal.preprocessing import Preprocessor

_log = logging.getLogger(__name__)


def load(init: Init) -> Loaded:
    """Load the processor and the decoders. Raises ``LsvError``."""
    # only now: libraries of arrays start threads, and a process that has any can't leave the network any more
    from lsv_multimodal.preprocessing import Preprocessor

    try:
        catalog = plugins.load(init.config.plugins or None, watched=False).catalog
        preprocessor = Preprocessor(init.config, catalog, init.limits)
        preprocessor.load_decoders()
    except LsvError:
        raise
    except Exception as cause:
        _log.exception("the processor can't be loaded")
        raise PluginError(f"the model's processor can't be loaded: {type(cause).__name__}: {cause}") from None
    return Loaded(lambda command: carry_out(preprocessor, command), readable=(init.config.model,))


def carry_out(preprocessor: Preprocessor, command: Measure | Prepare | SplitAudio) -> Iterator[Reply]:
    """The replies to a command; a fault of the processor's fails the one item."""
    modality = "audio" if isinstance(command, SplitAudio) else command.modality
    try:
        if isinstance(command, SplitAudio):
            yield from preprocessor.split_audio(command.item, command.seconds, command.options)
        elif isinstance(command, Measure):
            yield Measured(preprocessor.measure(command.modality, command.item, command.options))
        else:
            yield preprocessor.prepare(command.modality, command.item, command.options)
    except (LsvError, MemoryError):
        raise
    except Exception as cause:
        _log.exception("an item of kind %s could not be prepared", modality)
        raise RequestFailed(f"the {modality} could not be prepared ({type(cause).__name__})") from None


if __name__ == "__main__":
    sys.exit(run("media", Command, load))
