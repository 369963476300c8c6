"""Reads an adapter's files in a confined process, because clients may choose the folder and the files are untrusted."""
