"""mBART (Liu et al. 2020) and others of the line that norm first: M2M100 and NLLB, Pegasus, Blenderbot."""

from __future__ import annotations

import torch

from lsv_models.seq2seq.bart import Bart
from lsv_models.seq2seq.layers import Form
from lsv_runtime.nn.keys import Keys


class MBart(Bart):
    form: Form = Form(norms="pre")
    last_norm = True


class M2M100(MBart):
    """M2M-100 (Fan et al. 2020), and NLLB without experts."""

    rows, embed_norm, logits_bias = "fairseq", None, False
    scaled, activation = True, "relu"

    def read_more(self, keys: Keys) -> None:
        keys.agree("pad_token_id", self.offset - 1)

    def text_positions(self, ids: torch.Tensor) -> torch.Tensor:
        return skip_padding(ids, self.offset - 1)


def skip_padding(ids: torch.Tensor, padding: int) -> torch.Tensor:
    """Positions as fairseq counts them: padding inside a text has none, and is at the row before that of position 0."""
    there = ids != padding
    return torch.where(there, there.cumsum(0) - 1, -1)


class Pegasus(MBart):
    """PEGASUS (Zhang et al. 2019)."""

    rows, offset, embed_norm = "sinusoids", 0, None


class Blenderbot(MBart):
    """Blenderbot (Roller et al. 2020), the large ones."""

    offset, embed_norm, positions = 0, None, 128
