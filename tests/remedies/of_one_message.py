"""Remedies of sums by one message a client, and of masks that are too long."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from securefed import Layout, TensorSpec
from securefed.defenses import Identities, chain, one_message, secure_aggregation
from securefed.defenses._one_message.parameters import Encoding
from securefed.defenses._secure_aggregation.mask_streams import LONGEST
from securefed.defenses._secure_aggregation.masks import _check_length
from tests.defenses.one_message.play import Play, protocol
from tests.defenses.one_message.test_one_message_deviations import lying_client
from tests.remedies.followed import Followed, arguments, evaluated

MANY = 2**25
LONG = Layout((TensorSpec("w", (LONGEST // 4 + 1,), 1.0, 32),))


def led_by(identities: Any) -> object:
    return one_message(committee=range(5), identities=identities)


def beside_a_liar(**options: Any) -> Any:
    """Run an exchange in which the shares of client 6 do not fit."""
    with pytest.MonkeyPatch.context() as patch:
        lying_client(patch, 6, (1, 4))
        return Play(protocol(**options)).run()


def long_sum(message: str) -> object:
    return chain(evaluated(r"(secure_aggregation\(stream='chacha20'\))", message)).plan(LONG, 4)


TABLE: dict[str, Followed] = {
    "one message without identities": Followed(
        "defenses/_one_message/one_message.py",
        "one_message() needs the clients' identities",
        lambda _: led_by(None),
        lambda *_: led_by(Identities.generate(5)),
    ),
    "too many clients for a coefficient": Followed(
        "defenses/_one_message/parameters.py",
        "one message a client: ",
        lambda _: Encoding.of(MANY, 8, 32),
        lambda message, _: (
            Encoding.of(MANY // 32, 8, 32),
            chain(evaluated(r"or use (secure_aggregation\(.*\))$", message)).plan(
                Layout((TensorSpec("w", (8,), 1.0),)), 1000
            ),
        ),
    ),
    "a client whose shares do not fit": Followed(
        "defenses/_one_message/server.py",
        "the round is void (with keep_uploads=True",
        lambda _: beside_a_liar(),
        lambda message, _: 6 not in beside_a_liar(**arguments(r"with (keep_uploads=True) the", message)).survivors,
    ),
    "residues beyond the end of a stream": Followed(
        "defenses/_secure_aggregation/masks.py",
        "tensors of one width take ",
        lambda _: _check_length([np.broadcast_to(np.zeros(1, "<u4"), LONGEST // 4 + 1)]),
        lambda message, _: long_sum(message),
    ),
    "a plan beyond the end of a stream": Followed(
        "defenses/_secure_aggregation/planning.py",
        "and a mask of AES has",
        lambda _: chain(secure_aggregation()).plan(LONG, 4),
        lambda message, _: long_sum(message),
    ),
}
