"""A made-up family for tests: a picture is worth the bytes of its mean colour, a sound its peaks, a clip its frames."""
