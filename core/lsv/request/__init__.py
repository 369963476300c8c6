"""A request from the client to the scheduler: parameters, prompt, media, outputs."""
