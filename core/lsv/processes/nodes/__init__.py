"""Connections between machines that share a key: the listener, the handshake, and checks that two machines match."""
