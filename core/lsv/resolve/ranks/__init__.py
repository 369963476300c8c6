"""The ranks of an engine and the replicas of a server: how many there are, on which machines."""
