"""Recurrent layers: what they keep of a request, and the ops that take it from token to token."""
