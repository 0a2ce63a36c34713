"""Hold a client's answer back until the moment that the terms name (`SumTerms.answer_after`).

The server sees how long a client takes for its contribution. A function that fails early answers early, and one that
works on more rows answers late. So terms may say how many seconds after a request for the contribution arrived all
clients answer it. A client that takes longer cannot keep that, and tells its own site.
"""

from __future__ import annotations

import time
import warnings
from typing import Final

from securefed._messages import ClientId
from securefed.errors import LateAnswerWarning

LONGEST: Final = 3600.0
"""Most seconds that terms may name: a server proposes terms to sites (`secure_mod`), whose processes wait so long."""


def moment() -> float:
    """Return the time in seconds, from an arbitrary start, which never goes back."""
    return time.monotonic()


def hold(client: ClientId, arrived: float, seconds: float | None) -> None:
    """Wait until so many seconds after a request arrived have passed.

    Args:
        client: the client that answers.
        arrived: when the request arrived, as `moment` tells it.
        seconds: from the terms; `None` for no wait.

    Warns:
        LateAnswerWarning: more seconds have passed already.
    """
    if seconds is None:
        return
    if (late := moment() - arrived - seconds) > 0:
        warnings.warn(
            f"client {client} answers {late:.3g} s later than the terms say, {seconds:g} s after the request: the "
            "server may see how long its contribution took; agree on terms with a longer answer_after",
            LateAnswerWarning,
            stacklevel=4,
        )
    while (left := arrived + seconds - moment()) > 0:
        time.sleep(left)


def declared(seconds: float) -> str:
    """Return the sentence of a plan on this."""
    return (
        f"A client answers the request for its contribution {seconds:g} s after it arrived, whether its update was "
        "computed, failed or was computed early. One that takes longer answers later, which the server sees; that "
        "client tells its own site (LateAnswerWarning)."
    )
