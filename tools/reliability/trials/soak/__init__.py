"""A server under more load than it has room for, for as long as it takes to see what leaks, hangs or goes wrong."""
