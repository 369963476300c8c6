"""Names of vLLM's weight transfer. Trainers import them for a server that takes weights, which lsv's does not."""

from __future__ import annotations

from typing import Any

_REFUSAL = (
    "lsv's servers take no weights from a trainer: save the model, and start the server with the folder; "
    "in TRL, use the mode colocate without weight updates"
)


class NCCLTrainerSendWeightsArgs:
    """Raises ``NotImplementedError``."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError(_REFUSAL)


class NCCLWeightTransferEngine:
    """Raises ``NotImplementedError``, also from its static methods."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError(_REFUSAL)

    @staticmethod
    def trainer_init(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(_REFUSAL)

    @staticmethod
    def trainer_send_weights(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(_REFUSAL)
