"""Rotary position embedding: the frequencies of every scaling rule in use, and the rotation itself.

Sources: RoFormer (Su et al. 2021), position interpolation, dynamic NTK, YaRN (Peng et al. 2023), LongRoPE
(Ding et al. 2024), Llama 3.1; the parameter names and values are those of transformers' ``rope_parameters``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from lsv.offers import OpSpec
from lsv_base.errors import CheckpointError
from lsv_runtime.ops import Bindable, dtype_name

if TYPE_CHECKING:
    from lsv_runtime.nn.keys import Keys
    from lsv_runtime.weights.place import Weights

_PARTIAL = "partial_rotary_factor"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """One scaling rule with its numbers."""

    kind: str
    """The rule's name in config.json, such as ``llama3``."""
    theta: float
    head_dim: int
    rotary_dim: int
    """How many features of a head are rotated."""
    length: int
    """The checkpoint's longest input, in tokens."""
    original_length: int
    """The longest input before scaling."""
    parameters: Mapping[str, Any]
    """The rule's own parameters, as in config.json."""


def read_rope(keys: Keys, head_dim: int, theta: float) -> RopeConfig:
    """The rope rule of a config.json, in the style of ``rope_parameters`` or of ``rope_scaling`` and ``rope_theta``.

    Raises ``CheckpointError`` for an unknown rule, for one that lacks a parameter, and for what is not understood.
    """
    return read_ropes(keys, head_dim, theta)[0]


def read_ropes(
    keys: Keys, head_dim: int, theta: float, local_theta: float | None = None, fraction: float | None = 1.0
) -> tuple[RopeConfig, RopeConfig]:
    """As ``read_rope``, the rules of layers without and with a window: those of ``rope_parameters`` by kind of layer,
    or else the same one; with a ``local_theta`` the latter have a plain rope from ``rope_local_base_freq`` instead.
    ``fraction`` of a head rotates where the file does not say; None is for families that always rotate whole heads.
    """
    if fraction is None:
        keys.pass_over(_PARTIAL)
    fixed, fraction = fraction is None, keys.take(_PARTIAL, float, 1.0 if fraction is None else fraction)
    length = keys.take("max_position_embeddings", int, 2048)
    outside = keys.maybe("original_max_position_embeddings", int)
    old, new = keys.maybe("rope_scaling", dict) or {}, keys.maybe("rope_parameters", dict) or {}
    theta = keys.take("rope_theta", float, theta)
    full: Mapping[str, Any] = {**new, **old}
    local, own_theta = full, theta
    if local_theta is not None:
        local, own_theta = {}, keys.take("rope_local_base_freq", float, local_theta)
    if new and set(new) <= _KINDS:
        full, local = {**_rule(new, "full_attention"), **old}, _rule(new, "sliding_attention")

    def make(given: Mapping[str, Any], theta: float) -> RopeConfig:
        given = {name: value for name, value in given.items() if not (fixed and name == _PARTIAL)}
        return _read_rule(given, head_dim, theta, fraction, length, outside)

    return make(full, theta), make(local, own_theta)


def _rule(by_kind: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found = by_kind.get(kind) or {}
    if not isinstance(found, dict):
        raise CheckpointError(f"config.json: the rope of {kind} must be an object, got {found!r:.100}")
    return found


def _read_rule(
    given: Mapping[str, Any], head_dim: int, theta: float, fraction: float, length: int, outside: int | None
) -> RopeConfig:
    parameters: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    kind = _name_rule(parameters)
    if kind not in _RULES or any(isinstance(value, dict) for value in parameters.values()):
        raise CheckpointError(f"config.json: rope rule {kind!r:.100} is not known; known are {', '.join(_RULES)}")
    if kind == "ntk_alpha":  # the others are there, and do not take part
        parameters = {name: parameters[name] for name in ("alpha", "rope_theta") if name in parameters}
    _check_parameters(kind, parameters)
    strange = sorted(name for name, value in parameters.items() if name not in _KNOWN and value not in (None, False))
    if strange:
        raise CheckpointError(
            f"config.json: rope rule {kind} has parameters that are not understood: {', '.join(strange)}; "
            "set them to null with --hf-overrides if they do not matter"
        )
    missing = [name for name in _REQUIRED.get(kind, ()) if parameters.get(name) is None]
    if missing:
        raise CheckpointError(f"config.json: rope rule {kind} lacks {', '.join(missing)}")
    fraction = float(parameters.get(_PARTIAL, fraction))
    return RopeConfig(
        kind=kind,
        theta=float(parameters.get("rope_theta") or theta),
        head_dim=head_dim,
        rotary_dim=head_dim if kind == "proportional" else int(head_dim * fraction),
        length=length,
        original_length=int(outside or parameters.get("original_max_position_embeddings") or length),
        parameters={**parameters, _PARTIAL: fraction},
    )


def _name_rule(parameters: Mapping[str, Any]) -> str:
    """The rule's common name; some files have another for it."""
    kind = str(parameters.get("rope_type", parameters.get("type", "default")))
    if kind == "yarn" and "long_factor" in parameters:
        return "longrope"  # the first Phi-3
    if kind == "dynamic" and parameters.get("alpha"):
        return "ntk_alpha"  # Hunyuan
    return {"su": "longrope", "mrope": "default"}.get(kind, kind)


def _check_parameters(kind: str, parameters: Mapping[str, Any]) -> None:
    """Check that numbers are positive and finite, and lists of factors or sections hold such numbers."""
    for name, value in parameters.items():
        if value is None or not (name in _NUMBERS or name in _LISTS):
            continue
        numbers = value if name in _LISTS and isinstance(value, list) else [value]
        whole = all(type(one) in (int, float) and 0 < one < _MOST for one in numbers)
        if not whole or isinstance(value, list) != (name in _LISTS):
            kinds = "a list of positive numbers" if name in _LISTS else "a positive number"
            raise CheckpointError(f"config.json: {name} of rope rule {kind} must be {kinds}, got {value!r:.100}")


Frequencies = tuple[torch.Tensor, float]
"""Inverse frequencies float32 [rotary_dim / 2], and the factor on cosine and sine."""


def frequencies(rope: RopeConfig, max_len: int) -> Frequencies:
    """The frequencies for inputs of up to ``max_len`` tokens.

    longrope depends on the input's length and uses ``max_len`` instead: a cached key is rotated once, so all requests
    must be rotated alike. For dynamic see ``stretch_angles``.
    """
    return _RULES[rope.kind](rope, max_len)


def stretch_angles(rope: RopeConfig, positions: torch.Tensor) -> torch.Tensor:
    """The angles float32 [T, rotary_dim / 2] of dynamic NTK, whose frequencies fall with the length of the input.

    A cached key is rotated once, so each token is rotated as the last one of its input: within the checkpoint's length
    that is what transformers computes, and beyond it what it computes for the tokens that it generates.
    """
    factor, dim = float(rope.parameters["factor"]), rope.rotary_dim
    places = positions.to(torch.float32)
    stretch = factor * (places + 1).clamp(min=rope.length) / rope.length - (factor - 1)
    theta = rope.theta * stretch ** (dim / (dim - 2))
    return places[:, None] / theta[:, None] ** (torch.arange(0, dim, 2, device=places.device) / dim)


def _powers(theta: float, dim: int) -> torch.Tensor:
    return theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)


def _default(rope: RopeConfig, max_len: int) -> Frequencies:
    return 1.0 / _powers(rope.theta, rope.rotary_dim), 1.0


def _linear(rope: RopeConfig, max_len: int) -> Frequencies:
    return _default(rope, max_len)[0] / float(rope.parameters["factor"]), 1.0


def _ntk_alpha(rope: RopeConfig, max_len: int) -> Frequencies:
    dim = rope.rotary_dim
    return 1.0 / _powers(rope.theta * float(rope.parameters["alpha"]) ** (dim / (dim - 2)), dim), 1.0


def _llama3(rope: RopeConfig, max_len: int) -> Frequencies:
    factor, low, high = (float(rope.parameters[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    plain, _ = _default(rope, max_len)
    turns = rope.original_length * plain / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - smooth) * plain / factor + smooth * plain, 1.0


def _yarn(rope: RopeConfig, max_len: int) -> Frequencies:
    given, dim = rope.parameters, rope.rotary_dim
    factor = float(given.get("factor") or rope.length / rope.original_length)

    def border(turns: float) -> float:
        """The feature pair that makes ``turns`` turns within the original length."""
        return dim * math.log(rope.original_length / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = border(given.get("beta_fast") or 32), border(given.get("beta_slow") or 1)
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low if high != low else 0.001)
    interpolated = ramp.clamp(0.0, 1.0)
    plain, _ = _default(rope, max_len)
    return plain / factor * interpolated + plain * (1 - interpolated), _yarn_magnitude(given, factor)


def _yarn_magnitude(given: Mapping[str, Any], factor: float) -> float:
    def magnitude(scale: float = 1.0) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    if given.get("attention_factor") is not None:
        return float(given["attention_factor"])
    own = float(given.get("attn_factor") or 1.0)
    if given.get("mscale") and given.get("mscale_all_dim"):
        return own * magnitude(given["mscale"]) / magnitude(given["mscale_all_dim"])
    return own * magnitude()


def _longrope(rope: RopeConfig, max_len: int) -> Frequencies:
    given = rope.parameters
    scales = given["long_factor" if max_len > rope.original_length else "short_factor"]
    if len(scales) != rope.rotary_dim // 2:
        raise CheckpointError(
            f"config.json: longrope factors need {rope.rotary_dim // 2} entries each, got {len(scales)}"
        )
    factor = float(given.get("factor") or rope.length / rope.original_length)
    magnitude = given.get("attention_factor")
    if magnitude is None:
        magnitude = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(rope.original_length))
    scaled = torch.tensor(scales, dtype=torch.float32) * _powers(rope.theta, rope.rotary_dim)
    return 1.0 / scaled, float(magnitude)


def _proportional(rope: RopeConfig, max_len: int) -> Frequencies:
    """Only the first ``partial_rotary_factor`` of the pairs rotate, as fast as they would in a full rotation."""
    pairs = int(rope.parameters[_PARTIAL] * rope.head_dim // 2)
    plain = 1.0 / _powers(rope.theta, rope.head_dim)
    plain[pairs:] = 0.0
    return plain / float(rope.parameters.get("factor") or 1.0), 1.0


_RULES: Mapping[str, Callable[[RopeConfig, int], Frequencies]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _default,  # up to the length of the checkpoint
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
    "ntk_alpha": _ntk_alpha,
}
_KINDS = {"full_attention", "sliding_attention"}
_MOST = 1e18
_NUMBERS = frozenset((
    "alpha", "attention_factor", "attn_factor", "beta_fast", "beta_slow", "factor", "high_freq_factor",
    "low_freq_factor", "mscale", "mscale_all_dim", "original_max_position_embeddings", _PARTIAL,
    "rope_theta",
))  # fmt: skip
_TURNS = ("mrope_interleaved", "interleaved")
_LISTS = frozenset(("long_factor", "mrope_section", "short_factor"))
_KNOWN = _NUMBERS | _LISTS | {"finetuned", "rope_type", "truncate", "type", *_TURNS}
_REQUIRED = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("long_factor", "short_factor"),
}


class Rope(Bindable):
    """Rotates the heads of q and k in halves: features i and i + rotary_dim / 2 are a pair. All layers share one."""

    op: ClassVar[str] = "rope"
    axes: ClassVar[int] = 1
    interleaved: ClassVar[bool] = False
    """Whether the pairs of several axes take turns, which ``mrope_interleaved``, or ``interleaved``, must agree with
    where it is given."""
    row_invariant: ClassVar[bool] = True
    table: torch.Tensor
    """[max_len, 2 * rotary_dim]: by position the cosines of all features, then their sines, the first half of which is
    negated; in the model's dtype, computed in float32."""

    def __init__(self, w: Weights, rope: RopeConfig, max_len: int) -> None:
        super().__init__()
        if rope.rotary_dim % 2 or rope.rotary_dim > rope.head_dim:
            raise CheckpointError(
                f"config.json: {rope.rotary_dim} of the {rope.head_dim} features of a head rotate, expected an even "
                f"number of them; check {_PARTIAL} and head_dim"
            )
        for name in () if self.axes == 1 and "mrope_section" in rope.parameters else _TURNS:  # one axis takes all turns
            if rope.parameters.get(name, self.interleaved) != self.interleaved:
                raise CheckpointError(f"config.json: {name} must be {str(self.interleaved).lower()} in this family")
        self.rope, self.max_len, self.dtype, self.device = rope, max_len, w.dtype, w.device

    def spec(self) -> OpSpec:
        shape = {
            "head_dim": self.rope.head_dim,
            "rotary_dim": self.rope.rotary_dim,
            "positions": self.max_len,
        }
        return OpSpec(self.op, dtype_name(self.dtype), shape=shape)

    def made_bytes(self) -> int:
        return self.max_len * 2 * self.rope.rotary_dim * self.dtype.itemsize

    def filled(self) -> None:
        self.keep("table", self.make_table())

    def make_table(self) -> torch.Tensor:
        inverse, magnitude = frequencies(self.rope, self.max_len)
        positions = torch.arange(self.max_len, dtype=torch.float32)
        angles = (
            stretch_angles(self.rope, positions) if self.rope.kind == "dynamic" else torch.outer(positions, inverse)
        )
        cos, sin = angles.cos() * magnitude, angles.sin() * magnitude
        return torch.cat((cos, cos, -sin, sin), dim=-1).to(self.device, self.dtype)

    def reference(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """heads [T, any, head_dim] and positions int64 [T] -> the rotated heads, same shape."""
        return self.rotate(heads, self.table[positions])

    def rotate(self, heads: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """The heads rotated by rows [T, 2 * rotary_dim] of the table."""
        dim = self.rope.rotary_dim
        cos, sin = rows.unsqueeze(1).chunk(2, dim=-1)
        x = heads[..., :dim]
        rotated = torch.addcmul(x * cos, x.roll(dim // 2, dims=-1), sin)
        if dim == heads.shape[-1]:
            return rotated
        return torch.cat((rotated, heads[..., dim:]), dim=-1)


class PairRope(Rope):
    """Rotates neighbours: features 2 i and 2 i + 1 are a pair (Su et al. 2021, GLM, GPT-J)."""

    op: ClassVar[str] = "rope.pairs"

    def rotate(self, heads: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        dim = self.rope.rotary_dim
        cos, _, _, sin = rows.unsqueeze(1).chunk(4, dim=-1)
        first, second = heads[..., :dim].reshape(*heads.shape[:-1], dim // 2, 2).unbind(-1)
        rotated = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
        return rotated if dim == heads.shape[-1] else torch.cat((rotated, heads[..., dim:]), dim=-1)


class MRope(Rope):
    """Rotary embedding for tokens with positions in time, height and width (Wang et al. 2024, Qwen2-VL): the first
    ``mrope_section`` feature pairs rotate by the first axis, the next ones by the second, and so on.

    Raises ``CheckpointError`` for sections that do not make up all pairs.
    """

    op: ClassVar[str] = "mrope"
    axes: ClassVar[int] = 3
    usual: ClassVar[tuple[int, ...]] = (16, 24, 24)
    """The sections where config.json has none."""

    def __init__(self, w: Weights, rope: RopeConfig, max_len: int) -> None:
        super().__init__(w, rope, max_len)
        sections = rope.parameters.get("mrope_section") or self.usual
        if len(sections) != self.axes or sum(sections) != rope.rotary_dim // 2:
            raise CheckpointError(
                f"config.json: mrope_section must be {self.axes} numbers that add up to {rope.rotary_dim // 2}, "
                f"got {sections}"
            )
        self.sections = tuple(map(int, sections))

    def reference(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """heads [T, any, head_dim] and positions int64 [3, T] -> the rotated heads, same shape."""
        # cosines and sines of both halves: each is cut into the same sections
        parts = self.table[positions].split_with_sizes(self.sections * 4, dim=-1)
        rows = torch.cat([part[number % self.axes] for number, part in enumerate(parts)], dim=-1)
        return self.rotate(heads, rows)


class InterleavedMRope(MRope):
    """Axes take turns (Qwen3-VL): of three pairs one rotates by time, one by height and one by width, the latter two as
    long as their sections last, and all behind that by time.
    """

    op: ClassVar[str] = "mrope.interleaved"
    interleaved: ClassVar[bool] = True
    usual: ClassVar[tuple[int, ...]] = (24, 20, 20)

    def reference(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        by_axis = self.table[positions].view(*positions.shape, 4, -1)  # cosines and sines of both halves
        rows = by_axis[0]
        for axis in range(1, self.axes):
            pairs = slice(axis, self.axes * self.sections[axis], self.axes)
            rows[..., pairs] = by_axis[axis, ..., pairs]
        return self.rotate(heads, rows.flatten(-2))


class PairMRope(MRope, PairRope):
    """The same of neighbours (GLM-4.1V)."""

    op: ClassVar[str] = "mrope.pairs"
