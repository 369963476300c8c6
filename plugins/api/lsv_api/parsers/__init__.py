"""Which parsers read a model's answers: found by name, chosen by the chat template, or from a file of an operator."""
