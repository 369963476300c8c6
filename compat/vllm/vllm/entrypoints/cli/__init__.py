"""The command ``vllm``."""
