"""Code that comes with a checkpoint: that of tokenizers and configs runs where it is trusted, in a confined process."""
