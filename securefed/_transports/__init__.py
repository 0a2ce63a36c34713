"""Carry messages between server and clients: the transport protocol and transports in one process."""
