"""How the server is: models, health, version, metrics."""
