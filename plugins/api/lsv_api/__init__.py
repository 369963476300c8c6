"""The OpenAI-compatible HTTP API of lsv, on Sanic."""
