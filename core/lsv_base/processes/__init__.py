"""Child processes and the framed messages they exchange with their parent."""
