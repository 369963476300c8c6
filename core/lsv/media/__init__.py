"""Images, audio and video of a request: reading, decoding, preparing, placing."""
