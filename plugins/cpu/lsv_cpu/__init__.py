"""The default platform: CPUs, with their own paged attention, kernels, thread and memory rules."""
