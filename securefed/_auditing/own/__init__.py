"""Audit a user's own algorithm or client function by attacks that only run its client step."""
