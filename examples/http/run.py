"""A server and five clients over HTTPS, one of them killed on the way: `python examples/http/run.py`."""

import asyncio
import os
import secrets
import socket
import ssl
import subprocess
import tempfile
from multiprocessing import Process
from pathlib import Path

import httpx
import numpy as np
import uvicorn
from parties_http import Rounds, contribute

from securefed.defenses import secure_aggregation
from securefed.parties import SumClient, SumServer, SumTerms

CLIENTS, KILLED = 5, 3
MASKS = secure_aggregation()
TERMS = SumTerms.like({"w": np.zeros(1000)}, clients=CLIENTS, defense=MASKS, largest_weight=200, base=False)
CERTIFICATE = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=sum -batch"


def update(number):
    return {"w": np.random.default_rng(number).normal(size=1000)}


async def client(number, port, token, certificate):
    trusted, headers = ssl.create_default_context(cafile=certificate), {"Authorization": f"Bearer {token}"}
    party, own = SumClient(TERMS, number), os.abort if number == KILLED else update(number)
    async with httpx.AsyncClient(base_url=f"https://127.0.0.1:{port}", verify=trusted, headers=headers) as http:
        await contribute(http, party, own, weight=100 + number)


def start_client(*arguments):
    asyncio.run(client(*arguments))


async def serve(rounds, listening, **files):
    server = uvicorn.Server(uvicorn.Config(rounds.app, log_level="warning", **files))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    result = await rounds.run()
    await asyncio.sleep(0.5)  # clients learn that it is over
    server.should_exit = True
    await serving
    return result


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as listening:
        key, certificate = Path(folder) / "key.pem", Path(folder) / "certificate.pem"
        files = ["-keyout", key, "-out", certificate, "-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run(["openssl", *CERTIFICATE.split(), *files], check=True, capture_output=True)
        tokens = {number: secrets.token_hex(16) for number in range(CLIENTS)}
        for number, token in tokens.items():
            Process(target=start_client, args=(number, listening.getsockname()[1], token, certificate)).start()
        rounds = Rounds(SumServer(TERMS), tokens, patience=5)
        result = asyncio.run(serve(rounds, listening, ssl_certfile=certificate, ssl_keyfile=key))
    weights = [100 + number for number in result.survivors]
    exact = np.average([update(number)["w"] for number in result.survivors], axis=0, weights=weights)
    print(f"clients {result.survivors} in the mean, error {np.abs(result.mean['w'] - exact).max():.1e}")
