"""Prometheus metrics: what each request was like, and how the engines are."""
