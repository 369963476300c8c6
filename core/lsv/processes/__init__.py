"""Processes on other machines; those on this machine are in ``lsv_base.processes``."""
