"""Reading what requests refer to: inside the request, in a file, or on another host."""
