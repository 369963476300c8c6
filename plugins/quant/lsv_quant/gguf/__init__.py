"""GGUF, llama.cpp's files: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md."""
