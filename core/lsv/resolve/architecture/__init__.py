"""Which model serves a checkpoint, going by the names in its config.json."""
