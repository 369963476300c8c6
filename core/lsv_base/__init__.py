"""The ground of lsv: errors, child processes, untrusted input, and code that comes with a checkpoint.

It knows nothing of models, requests or engines. Everything else of lsv may import it.
"""
