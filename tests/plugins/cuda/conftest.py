"""Without a GPU, kernels run in Triton's interpreter, which has to be chosen before anything imports Triton."""

from __future__ import annotations

import os

import torch

os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")
