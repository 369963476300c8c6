"""Recurrent models, and hybrids of recurrent layers and attention."""
