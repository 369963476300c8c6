"""The offline API: ``LLM``, ``LLMEngine`` and ``AsyncLLMEngine``, shaped as vLLM's, and vLLM's vocabulary."""
