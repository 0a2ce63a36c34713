"""Say whether the clients checked the last sum of a run, after the server published it to them.

Where the terms verify (`verify=True`), clients check a sum before they answer the first request of the next one. The
last sum of each phase has no next one. So at the end of a run `SumGrid` publishes its result, with the announced sum,
to the clients in it, and `secure_mod` checks it as `SumClient.check` does. Here is what becomes of that, in words.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from flwr.app import Message, RecordDict

from securefed.flower._sum_messages import SumRequest
from securefed.parties._result import SumResult
from securefed.parties._terms import SumTerms

_LOG = logging.getLogger("securefed.flower")

UNVERIFIED: Final = (
    "no client checked a sum of this run: the terms do not let them; use secure_aggregation(verify=True, "
    "identities=...)"
)
"""Said of a run whose terms verify no sums."""
_VOID: Final = (
    "{phase}: the last round was void; clients checked the sum before it, if any, when they answered its requests"
)


@dataclass(frozen=True)
class LastSum:
    """The newest sum of a phase.

    Attributes:
        message: the strategy's message of the round, whose type and group the last message gets.
        result: what the server publishes.
    """

    message: Message
    result: SumResult

    def requests(
        self, nodes: Mapping[int, int], terms: SumTerms, weighted_by: str, run_config: str
    ) -> dict[int, RecordDict]:
        """Return the contents that publish the result, by SuperNode.

        Args:
            nodes: by SuperNode, the client that it is.
            terms: the terms of the phase. Where they sum differences, the model goes along: the mean follows from it.
            weighted_by: name of the metric that weights updates.
            run_config: digest of the run's config.
        """
        data, agreed = self.result.to_bytes(terms), terms.to_bytes()
        original = self.message.content if terms.differences else None
        return {
            node: SumRequest(party, weighted_by, run_config, agreed, data, publishes=True).content(original)
            for node, party in nodes.items()
        }


def void(phase: str) -> str:
    """Return the sentence on a phase whose last round gave no sum."""
    return _VOID.format(phase=phase)


def outcome(phase: str, asked: Collection[int], confirmed: Collection[int], reasons: Mapping[int, str]) -> str:
    """Return the sentence on the last sum of a phase, and log it.

    Args:
        phase: `train` or `evaluate`.
        asked: the SuperNodes in the sum.
        confirmed: those that found it right.
        reasons: by SuperNode, why it did not confirm it, as far as it said so.
    """
    said = f"{phase}: {len(confirmed)} of {len(asked)} SuperNodes checked the last sum and found it right"
    missing = [node for node in asked if node not in set(confirmed)]
    if missing:
        told = [f"{node}: {reasons.get(node, 'no answer')}" for node in missing]
        said += f"; by the others it is not checked, or refused ({'; '.join(told)})"
    _LOG.log(logging.ERROR if missing else logging.INFO, "%s", said)
    return said


def report(publish: Callable[[str], str], phases: Collection[str], terms: Mapping[str, SumTerms]) -> str:
    """Publish the last sums of a run, and return what became of each; empty where there was none.

    A run keeps its result where a sum cannot be published.

    Args:
        publish: publishes the last sum of a phase, and says what became of it.
        phases: those of the run, `train` or `evaluate`.
        terms: by phase.
    """
    if phases and not any(terms[phase].plan.verified for phase in phases):
        return UNVERIFIED
    said = []
    for phase in phases:
        try:
            said.append(publish(phase))
        except Exception as error:
            _LOG.exception("%s: the last sum could not be published", phase)
            said.append(f"{phase}: the last sum could not be published, so that no client checked it: {error!r}")
    return "; ".join(said)
