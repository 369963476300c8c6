"""The engine: its loop and process, and the clients that talk to it. Imports no torch."""
