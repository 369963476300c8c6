"""How the tests of lsv run: in which order, on which worker, and what a test may leave behind."""
