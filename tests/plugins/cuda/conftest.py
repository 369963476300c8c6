"""Triton's kernels run in its interpreter here, too."""

from suite.interpreter import quicken

quicken()
