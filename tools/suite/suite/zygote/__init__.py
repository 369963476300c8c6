"""Starts the Python processes of tests in milliseconds: a zygote, which has imported torch, forks them.

A process that runs tests asks its zygote where it would start ``python -m MODULE``. The new process is a child of the
process that asked, as any other: ``subprocess`` waits for it and signals it, and it dies with its parent. Beside each
forked process runs a zygote of its own, so that a server's engine starts as quickly as the server.

Only ``make test`` does so, with ``pytest --fork``. A zygote changes when modules are imported, so a test of that is
marked ``cold``: all of its processes start as users start them. So do commands that a zygote can't run, see ``Asker``.
"""
