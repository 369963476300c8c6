"""A running API server over a fake engine, for every test of the API."""

from __future__ import annotations

from suite.sites import site as site
from suite.sites import start as start
