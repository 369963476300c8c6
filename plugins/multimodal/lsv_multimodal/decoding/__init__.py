"""Encoded images, audio and video to pixels and samples. Heavy: imported where something is decoded."""
