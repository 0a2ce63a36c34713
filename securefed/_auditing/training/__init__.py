"""Audit a torch training loop: run the caller's local step, or read a recording of it, and attack what clients send."""
