"""Trials of lsv as a whole: hours of everything at once (``soak``), and input that nobody would send (``fuzz``)."""
