"""Experts that move between ranks, so that what routers choose is the same work for all."""
