"""What platform plugins share: streams and graphs, collectives, emulation, device probing."""
