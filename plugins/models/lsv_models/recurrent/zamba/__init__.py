"""Zamba: recurrent layers, and blocks of attention whose weights several layers share."""
