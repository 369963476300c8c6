"""Reading an adapter's files in a confined process: they may hold anything, and clients may name their folders."""
