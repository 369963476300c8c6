"""The routes for labels, scores and the states of tokens; vectors of texts are in ``lsv_api.openai.embeddings``."""
