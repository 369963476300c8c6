"""Transcription and translation of audio."""
