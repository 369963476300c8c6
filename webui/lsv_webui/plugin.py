"""The web page in front of a server."""

api = 1
