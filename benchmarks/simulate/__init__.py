"""A fleet of replicas as discrete events: what throughput, time to first token and time between tokens to expect of it.

    PYTHONPATH=benchmarks python -m simulate measure -o steps.json MODEL     how long a real engine's steps take
    PYTHONPATH=benchmarks python -m simulate run --steps steps.json …        what so many replicas make of a load
    PYTHONPATH=benchmarks python -m simulate validate …                      predicted beside measured, of two replicas

An engine plans its steps as lsv's does: all that decode, then chunks of prompts as long as there are tokens left. Where
requests go is decided by the code that decides it in a server. What is not here: preemption (a request waits until the
cache has room for its whole length), steps of several lengths in flight, networks.
"""
