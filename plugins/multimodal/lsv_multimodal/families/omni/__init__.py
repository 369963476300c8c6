"""Families that see and hear, and a video with its sound."""
