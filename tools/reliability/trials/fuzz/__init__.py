"""Input that nobody would send on purpose: to the API, to the readers of files, to the state machines inside."""
