"""How lsv-demo was made: its world, corpus, tokenizer, training and evaluation. Not installed with lsv."""
