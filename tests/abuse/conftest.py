"""A running API server over a fake engine, for tests of hostile clients."""

from __future__ import annotations

from suite.sites import start as start
