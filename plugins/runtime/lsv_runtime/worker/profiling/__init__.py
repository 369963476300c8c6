"""What the time of steps goes into, written down while somebody asks for it."""
