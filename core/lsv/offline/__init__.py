"""What scripts written against vLLM import besides ``LLM``."""
