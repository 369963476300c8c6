"""From text to token ids and back: tokenizers, chat templates, prompts, incremental detokenization."""
