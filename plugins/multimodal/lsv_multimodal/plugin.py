"""Processors of the families that take pictures, sounds and clips."""

api = 1
