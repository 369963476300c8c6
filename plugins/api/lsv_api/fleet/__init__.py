"""Several API processes on one address, before the same engines: ``--api-server-count``."""
