"""Bodies of requests and responses, field for field."""
