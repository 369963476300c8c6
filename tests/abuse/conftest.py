"""A running API server over a fake engine, for tests of what hostile clients may do to it."""

from __future__ import annotations

from suite.sites import start as start
