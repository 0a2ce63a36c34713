"""The command line: one function a command, and what the commands print."""
