"""What can happen to a message between a client and the server, and what either may make up: one function a fault.

A fault takes the message that an honest party sent and gives what arrives instead (`None`: nothing). Those of the
network know no keys; a server or client that lies seals what it says with its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from securefed import Message, Tensors
from securefed._persistence.packing import from_bytes
from securefed.defenses import Identities
from securefed.defenses._secure_aggregation import primitives
from securefed.defenses._secure_aggregation.primitives import private_key, public_bytes

FORGER = Identities.generate(8)
Fault = Callable[[Message, int], Message | None]


def lost(message: Message, salt: int) -> None:
    """It never arrives."""


def another_header(message: Message, salt: int) -> Message:
    """As if it belonged elsewhere."""
    changes: list[dict[str, Any]] = [
        {"round": message.round + 1}, {"run": "f" * 32}, {"stage": "keys" if message.stage != "keys" else "upload"},
        {"sender": 6}, {"receiver": 6},
    ]  # fmt: skip
    return replace(message, **changes[salt % len(changes)])


def another_body(message: Message, salt: int) -> Message:
    """A bit flipped, a field missing, one too many, of another type or another length."""
    names = sorted(message.body)
    if not names:
        return message
    name, body = names[salt % len(names)], dict(message.body)
    value, how = body[name], (salt // 7) % 6
    if how < 2 and value.nbytes:
        data = bytearray(value.tobytes())
        data[salt % len(data)] ^= 1 << (salt % 8)
        body[name] = np.frombuffer(bytes(data), value.dtype).reshape(value.shape)
    elif how == 2:
        del body[name]
    elif how == 3:
        body["more"] = value
    elif how == 4:
        body[name] = value.astype(np.float64)
    else:
        body[name] = np.concatenate([value.reshape(-1), value.reshape(-1)[:1]])
    return replace(message, body=body)


NETWORK: Mapping[str, Fault] = {"lost": lost, "another header": another_header, "another body": another_body}


def resealed(message: Message, secret: bytes, changes: Tensors) -> Message:
    """The message with fields changed by the party that may seal it; what rides on it stays."""
    riding = {name: value for name, value in message.body.items() if name.startswith("next/")}
    own = {name: value for name, value in message.body.items() if name not in riding and name != primitives.TAG}
    ends = message.run, message.round, message.stage, message.sender, message.receiver
    return replace(message, body={**primitives.seal(secret, *ends, {**own, **changes}), **riding})


def server_lies(message: Message, secret: bytes, salt: int) -> Message:
    """A server tells one client something else than the others."""
    body, client = message.body, message.receiver
    if message.stage == "shares":  # keys of its own for one of the others
        ids = body["ids"].tolist()
        other = ids[(ids.index(client) + 1) % len(ids)]
        row, key = ids.index(other), public_bytes(private_key(bytes([salt % 255 + 1]) * 32))
        changes = {name: np.array(body[name]) for name in body if name in ("share_keys", "mask_keys", "signatures")}
        for name, value in changes.items():
            value[row] = from_bytes(FORGER.sign(other, key) if name == "signatures" else key)
    elif message.stage == "upload":  # one sharer fewer
        row = (body["ids"].tolist().index(client) + 1) % len(body["ids"])
        changes = {name: np.delete(body[name], row, axis=0) for name in ("ids", "bundles")}
    elif "alive" in body:  # one survivor fewer
        gone = int(body["alive"][(body["alive"].tolist().index(client) + 1) % len(body["alive"])])
        changes = {
            "alive": body["alive"][body["alive"] != gone], "dead": np.sort(np.append(body["dead"], gone)),
        }  # fmt: skip
    else:  # one signature is another's, or missing
        signatures = np.roll(body["signatures"], 1, axis=0)
        changes = {"signatures": signatures} if salt % 2 else {n: body[n][1:] for n in ("ids", "signatures")}
    return resealed(message, secret, changes)


def client_lies(message: Message, secret: bytes, salt: int) -> Message:
    """A client deals, signs or gives something else than it should. (What it contributes is its own affair.)"""
    names = [n for n in ("bundles", "commitment", "signature", "shares") if n in message.body]
    if not names:
        return message
    name = names[salt % len(names)]
    value = np.array(message.body[name])
    value.reshape(-1)[salt % value.size] ^= 1
    return resealed(message, secret, {name: value})
