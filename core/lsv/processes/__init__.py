"""Processes on other machines. ``lsv_base.processes`` has those of this machine."""
