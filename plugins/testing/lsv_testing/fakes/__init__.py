"""Fakes for tests: a clock, a client, an engine, a worker, injected faults."""
