"""The workers: each owns a device, runs step plans on it and answers with step results."""
