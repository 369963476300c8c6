"""The first run on a machine with an accelerator: what starts, what is right, how fast it is; one report."""
