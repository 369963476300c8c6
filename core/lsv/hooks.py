"""What a manifest marks its hook implementations with."""

from __future__ import annotations

from pluggy import HookimplMarker

hookimpl = HookimplMarker("lsv")
"""Marks a function of a plugin's manifest as the implementation of a hook."""
