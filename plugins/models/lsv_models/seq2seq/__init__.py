"""Text encoder-decoders: an encoder reads the prompt, and a decoder that attends to its output writes the answer."""
