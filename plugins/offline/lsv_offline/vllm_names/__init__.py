"""The names of vLLM that code written for it imports, and where lsv has what they stand for."""
