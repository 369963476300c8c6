"""Quality behind ``lsv eval``: perplexity and accuracy of an engine; weight formats compared question by question."""
