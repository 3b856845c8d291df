"""The HTTP gateway: what clients talk to."""
