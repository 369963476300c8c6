"""Any language model of transformers, run as ``generate()`` runs it without a cache: text by text, from its beginning.

Where what comes of a token depends on those behind it, nothing but the text itself can be kept. So a request's tokens
are what is cached, and everything else holds as for other models: prompts come in chunks, prefixes are shared,
requests are preempted, rows of all kinds share a step. A token costs as much as its whole text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import CONFIG_MAPPING, PreTrainedModel

from lsv.offers import OpSpec
from lsv_base.errors import CheckpointError, ConfigError
from lsv_models.generic.body import PassThrough, find_body
from lsv_models.generic.building import decode, make_model
from lsv_models.generic.layout import Layout
from lsv_models.generic.refusal import Refused
from lsv_models.generic.ropes import make_buffers
from lsv_models.generic.weights import declare_weights, untie_head
from lsv_models.generic.wrappers import drop_towers, find_base, find_below_head, find_headed, is_wrapper
from lsv_models.rereading.tokens import KeptTokens
from lsv_runtime.attention import AttentionLayer
from lsv_runtime.nn.model import Model
from lsv_runtime.nn.step import Step
from lsv_runtime.ops import Bindable, dtype_name
from lsv_runtime.weights.place import Weights


class Rereading(Model):
    """Raises ``CheckpointError`` for a config.json that transformers can't follow, or follows by chance."""

    ignores: tuple[str, ...] = (r"rotary_emb\.inv_freq$", r"\.position_ids$")

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        super().__init__()
        if w.shard.size > 1:
            raise ConfigError(
                f"a model that reads whole texts can't be split over {w.shard.size} ranks: use one",
                param="tensor_parallel_size",
            )
        architecture = str((config.get("architectures") or ["?"])[0])
        try:
            lm = _build(config, w.dtype, architecture)
            vocab_size, self.size = lm.get_output_embeddings().weight.shape
            self.vocab_size = getattr(lm.config.get_text_config(), "unpadded_vocab_size", None) or vocab_size
            untie_head(w, lm)
            self._layout = Layout(lm, find_base(lm))
            if is_wrapper(lm):
                self.ignores = (*self.ignores, *self._layout.patterns_within(drop_towers(lm, find_body(lm))))
            self._head_path = next(path for path, each in lm.named_modules() if each is lm.get_output_embeddings())
            declare_weights(w, lm, self._layout)
            make_buffers(lm, lm, w.device, max_len)
            self.split(lm)
        except ConfigError:
            raise
        except Exception as cause:  # transformers' own classes raise whatever they meet
            reason = str(cause) if isinstance(cause, Refused) else f"building it failed: {cause!r:.500}"
            raise CheckpointError(f"{architecture}: {reason}") from cause
        self.layers = nn.ModuleList([_Reader(self.read, KeptTokens(self.vocab_size), w.dtype)])
        self.norm = nn.Identity()
        self.dtype = w.dtype

    @property
    def tokens(self) -> KeptTokens:
        reader = self.layers[0]
        assert isinstance(reader, _Reader)
        return reader.tokens

    def split(self, lm: PreTrainedModel) -> None:
        """Take the head out, so that what the head would be given is what comes of the model."""
        parent, _, name = self._head_path.rpartition(".")
        self.lm, self.out = lm, lm.get_submodule(self._head_path)
        setattr(lm.get_submodule(parent), name, nn.Identity())

    def read(self, text: torch.Tensor, wanted: Sequence[int]) -> torch.Tensor:
        """A text, ids [length] -> what its tokens at ``wanted`` give the head [wanted, size].

        Each is the last one of its own beginning of the text: nothing is known of how they depend on later ones.
        """
        lm: Any = self.lm
        beginnings = (text[None, : place + 1] for place in wanted)
        given = (lm.prepare_inputs_for_generation(ids, use_cache=False) for ids in beginnings)
        return torch.stack([lm(**inputs).logits[0, -1] for inputs in given])

    def embed(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        return torch.zeros(len(ids), self.size, dtype=self.dtype, device=ids.device)

    def head(self, hidden: torch.Tensor, step: Step) -> torch.Tensor:
        return self.out(hidden)  # type: ignore[no-any-return]

    def rename(self, name: str) -> str:
        return self._layout.rename(name)

    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        return (self.tokens.layer,)

    def place_layers(self, layers: Sequence[AttentionLayer]) -> None:
        (self.tokens.layer,) = layers


class RereadingBody(Rereading):
    """One whose tokens depend on earlier ones alone, and whose body is of the common form.

    A row's text is read once; what is done to logits behind the head is done, too.
    """

    def split(self, lm: PreTrainedModel) -> None:
        place = find_body(lm)
        self.base = lm.get_submodule(place)
        below = find_below_head(lm, place)
        lm.set_submodule(below, PassThrough(lm.get_submodule(below)))
        self.lm = lm.get_submodule(find_headed(lm, place))

    def read(self, text: torch.Tensor, wanted: Sequence[int]) -> torch.Tensor:
        return self.base(input_ids=text[None], use_cache=False).last_hidden_state[0, wanted]  # type: ignore[no-any-return]

    def head(self, hidden: torch.Tensor, step: Step) -> torch.Tensor:
        return self.lm(inputs_embeds=hidden[None], use_cache=False).logits[0]  # type: ignore[no-any-return]


class _Reader(Bindable):
    """x [T, size] -> the same with what the head takes at the tokens that go through it.

    How long texts are, the host decides: such a step can't be captured.
    """

    op: ClassVar[str] = "text"
    capturable: ClassVar[bool] = False

    def __init__(
        self, read: Callable[[torch.Tensor, Sequence[int]], torch.Tensor], tokens: KeptTokens, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.read, self.tokens, self.dtype = read, tokens, dtype

    def spec(self) -> OpSpec:
        return OpSpec(self.op, dtype_name(self.dtype))

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        for tokens, text, wanted in self.tokens(step, x.dtype):
            x[tokens] = self.read(text, wanted)
        return x


def _build(config: Mapping[str, Any], dtype: torch.dtype, architecture: str) -> PreTrainedModel:
    """The model on meta."""
    parsed = CONFIG_MAPPING[config["model_type"]].from_dict(decode({**config, "dtype": dtype_name(dtype)}))
    if "lsh" in getattr(parsed, "attn_layers", ()) and parsed.hash_seed is None:
        raise Refused("its tokens choose by random hashes which others they see: --hf-overrides '{\"hash_seed\": 0}' "
                      "has it choose alike every time")  # fmt: skip
    with torch.device("meta"):
        lm = make_model(parsed, dtype, "eager")
    if type(lm).__name__ != architecture:
        raise Refused(f"for text generation transformers has {type(lm).__name__} instead")
    if type(lm.get_output_embeddings()) is not nn.Linear:
        raise Refused("its head is not a linear layer")
    return lm
