"""Several engines of one model behind what looks like one client: data parallelism on one machine."""
