"""Machines that know each other by a secret: the door of one, the way to it, and whether two fit together."""
