"""Kernels of vllm_xpu_kernels."""
