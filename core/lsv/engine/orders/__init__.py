"""What an engine is ordered to do beside its requests."""
