"""The sizes that steps are padded to."""
