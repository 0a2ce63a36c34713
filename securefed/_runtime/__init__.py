"""Run federations: the round loop of the server, the client that answers it, and the rules of both."""
