"""``--rope-scaling`` and ``--rope-theta`` as changes to a config.json, which says either in one of two layouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEYS = ("rope_parameters", "rope_scaling", "rope_theta")


def rope_overrides(config: Mapping[str, Any], scaling: Mapping[str, Any] | None, theta: float | None) -> dict[str, Any]:
    """What is to be laid over ``config``. A rule takes the place of the checkpoint's, whose parameters become null."""
    if not scaling and theta is None:
        return {}
    text = config.get("text_config")
    if isinstance(text, Mapping) and any(text.get(key) is not None for key in _KEYS):
        return {"text_config": rope_overrides(text, scaling, theta)}
    new = isinstance(config.get("rope_parameters"), Mapping)
    old = config.get("rope_parameters" if new else "rope_scaling")
    rule: dict[str, Any] = {}
    if scaling:
        known = old if isinstance(old, Mapping) else ()
        rule = {name: None for name in known if name != "rope_theta"} | dict(scaling)
    own_theta = {} if theta is None else {"rope_theta": theta}
    if new:
        return {"rope_parameters": rule | own_theta}
    return ({"rope_scaling": rule} if rule else {}) | own_theta
