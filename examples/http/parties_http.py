"""One secure mean over HTTP: a Starlette app for the server, and the loop of a client."""

import asyncio
import hmac
import time

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route


class Rounds:
    """The server: clients fetch requests and post replies; it goes on when all have, or after `patience` seconds."""

    def __init__(self, party, tokens, patience):
        self.party, self.tokens, self.patience = party, tokens, patience
        self.replies, self.over = {}, False
        self.app = Starlette(routes=[Route("/{client:int}", self.message, methods=["GET", "POST"])])

    async def message(self, http):
        client, given = http.path_params["client"], http.headers.get("authorization", "").encode()
        if client not in self.tokens or not hmac.compare_digest(given, f"Bearer {self.tokens[client]}".encode()):
            return Response(status_code=401)
        if self.over:
            return Response(status_code=410)
        if client in self.replies or client not in self.party.outgoing:
            return Response(status_code=204)
        if http.method == "GET":
            return Response(self.party.outgoing[client])
        reply = b""
        async for part in http.stream():
            if len(reply := reply + part) > self.party.terms.most_bytes:  # no message is longer
                return Response(status_code=413)
        self.replies[client] = reply
        return Response(status_code=202)

    async def run(self):
        try:
            self.party.open()
            while self.party.result is None:
                late = time.monotonic() + self.patience
                while set(self.party.outgoing) - set(self.replies) and time.monotonic() < late:
                    await asyncio.sleep(0.01)
                replies, self.replies = self.replies, {}
                self.party.receive(replies)
            return self.party.result
        finally:
            self.over = True


async def contribute(http, client, update, weight):
    """Answer the server's requests until there are no more."""
    while (response := await http.get(f"/{client.party}")).status_code != 410:
        response.raise_for_status()
        if response.status_code == 200:
            await http.post(f"/{client.party}", content=client.receive(response.content, update, weight=weight))
        else:
            await asyncio.sleep(0.02)
