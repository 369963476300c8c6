"""Calling functions and thinking first: what is offered and asked, the course that teaches it, and its evaluation."""
