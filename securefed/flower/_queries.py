"""Secure sums of what SuperNodes answer to queries, and statistics of all their rows, in a ServerApp without rounds.

In Flower a ServerApp may ask SuperNodes for anything (`@app.query` at their apps) and read each reply. `SecureQueries`
is a grid in the place of Flower's, whose replies are one: the sums of all numbers in them. It also computes statistics
(`securefed.statistics`), which need no code at the SuperNodes but the function that reads their rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from securefed._hyperparameters import check_integer, check_limit, check_positive
from securefed.defenses._aggregation_facts import identities_in
from securefed.defenses._chain import Link, as_defense
from securefed.defenses._secure_aggregation.double_masking import SMALLEST_COHORT
from securefed.errors import ConfigError, MalformedError, PlanError, RangeRefused, RoundVoid
from securefed.flower._cohorts import Roster
from securefed.flower._grid import ALLOW, FlowerGrid
from securefed.flower._outcome import SecureRound
from securefed.flower._reply_numbers import LARGEST, STRUCTURE, bounds_of, shapes_of, unpacked
from securefed.flower._sum_messages import (
    CONTENT,
    DIGEST_ENTRY,
    QUERY,
    SumRequest,
    base_of,
    common_digest,
    config_digest,
    party_named,
    reply_data,
)
from securefed.parties._result import SumResult
from securefed.parties._server import SumServer
from securefed.parties._terms import SumTerms
from securefed.statistics._one_sum import OneSum

Found = TypeVar("Found")
_ASKED: Final = f"{QUERY}.statistic"
_EXACT: Final = 1e-6
"""Distance from a whole number up to which a sum of integers is one. The plan's error is far below it."""
_SILENT: Final = (
    "The log of each SuperNode says why it gave no part. To read that here while you try an app on data that are no "
    "secret, let the sites announce it: mods=[secure_mod(SitePolicy(announce_errors=True))], or announce_errors = true "
    "in the site's file"
)
_LOG = logging.getLogger("securefed.flower")


class SecureQueries(Grid):
    """A grid whose replies to queries are summed, and which asks statistics of all SuperNodes' rows.

        secure = SecureQueries(grid, secure_aggregation(), context.run_config)          # ServerApp
        [total] = secure.send_and_receive(messages)       # of `@app.query`: one reply, the sums of all its numbers
        found = secure.ask(Mean(bound={"age": 120}, rows=1000))         # a statistic, or `Together(...)` of several
        fitted = LogisticModel(...).fit(secure.ask)                      # a model: one sum for each iteration

        app = ClientApp(mods=[secure_mod])                               # ClientApp: `@app.query` stays as it was
        app.query("statistic")(statistics(rows))                         # rows(context): the table of this site

    All SuperNodes that are connected at the first query are the clients of every query. What a reply holds beside
    numbers (texts) stays with its client. The numbers of SuperNodes whose replies hold different ones cannot be summed.

    Guarantees: those of the defence. The server reads no single reply; SuperNodes refuse requests in the clear, and are
    not summed with others that were sent something else. With identities their ledgers refuse sums that subtract.
    Not guaranteed: that several sums of the same rows tell nothing of one row; the answers' own rules
    (`least_rows`, small cells) and noise are there for that.

    Args:
        grid: the ServerApp's grid.
        defense: how the sums are made: `secure_aggregation()`, for statistics also with noise for single rows.
        run_config: the config of the run, `context.run_config` of the ServerApp; SuperNodes with another one refuse.
        nodes: fewest SuperNodes that are waited for before the first query.
        bound: largest absolute number in a reply to `send_and_receive`; larger ones come back as NaN.
        numbers: most numbers in such a reply.
        max_void: attempts at one sum.
        poll: seconds between two looks for replies.
        patience: seconds to wait for the replies of a stage; the first exchange waits ten times as long for the first.

    Attributes:
        history: what became of each sum so far.

    Raises:
        ConfigError: an argument outside its domain, or a defence that needs a key holder.
    """

    def __init__(
        self,
        grid: Grid,
        defense: Link,
        run_config: Mapping[str, Any] | None = None,
        *,
        nodes: int = SMALLEST_COHORT,
        bound: float = LARGEST,
        numbers: int = 1024,
        max_void: int = 3,
        poll: float = 0.5,
        patience: float = 120.0,
    ) -> None:
        if as_defense(defense).aggregation.beside:
            raise ConfigError(
                f"{as_defense(defense).name} needs a key holder beside the server; use secure_aggregation()"
            )
        for name, number in (("nodes", nodes), ("numbers", numbers), ("max_void", max_void)):
            check_integer(name, number, 1)
        check_positive("bound", bound)
        check_limit("poll", poll)
        check_limit("patience", patience)
        self.history: list[SecureRound] = []
        self._grid, self._defense, self._config = grid, defense, config_digest(run_config or {})
        self._nodes, self._bound, self._numbers, self._max_void = nodes, bound, numbers, max_void
        self._poll, self._patience = poll, patience
        self._carrier = FlowerGrid(grid, {}, poll=poll)
        self._carrier.longest = 10 * patience
        self._roster: Roster | None = None
        self._sums: dict[bytes, SumServer] = {}  # by digest of the terms

    def ask(self, statistic: OneSum[Found]) -> Found:
        """Compute a statistic of the rows of all SuperNodes by one secure sum.

        Args:
            statistic: of `securefed.statistics`.

        Returns:
            Its estimate; for a statistic that was computed before, the same one without another sum.

        Raises:
            ConfigError: no statistic of one sum, SuperNodes that refuse it, or terms that do not fit together.
            RoundVoid: too few SuperNodes gave their part.
        """
        if not isinstance(statistic, OneSum):
            raise ConfigError(
                f"ask takes a statistic, such as Mean(bound=120, rows=1000); got {type(statistic).__name__}"
            )
        nodes = self._waited_for()
        terms = replace(statistic.terms(clients=len(nodes), defense=self._defense), max_void=self._max_void)
        if terms.about is None:
            raise ConfigError("this statistic is of a class of your own, which SuperNodes cannot make from the terms")
        asked = self._sums.get(terms.digest)
        result = None if asked is None else asked.result
        if result is None:
            result = self._sum(terms, nodes, Message(RecordDict(), nodes[0], _ASKED), None, self._patience)
        return statistic.estimate(result)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send queries of one content, and return one reply: the sums of all numbers of the SuperNodes' replies.

        Integers stay integers. The reply is empty where the replies hold different numbers.

        Args:
            messages: one for each SuperNode, of one type and content.
            timeout: seconds to wait for the replies of the apps; `None` for `patience`.

        Raises:
            ConfigError: messages that differ or are no queries, or SuperNodes that refuse.
            RoundVoid: too few SuperNodes replied.
        """
        given = list(messages)
        if not given:
            return []
        if any(message.metadata.message_type.partition(".")[0] != QUERY for message in given):
            raise ConfigError("SecureQueries sends queries; training and evaluation go through SecureStrategy")
        digest, nodes = common_digest(given, "", self._config), self._waited_for()
        base = base_of({}, shapes_of(self._numbers), digest)
        terms = SumTerms.like(
            base, clients=len(nodes), defense=self._defense, bounds={CONTENT: DIGEST_ENTRY} | bounds_of(self._bound),
            max_void=self._max_void,
        )  # fmt: skip
        result = self._sum(
            terms, [message.metadata.dst_node_id for message in given], given[0], (base, digest.hex()), timeout
        )
        content = unpacked(result.total, result.mean[STRUCTURE], exact=lambda total: abs(total - round(total)) < _EXACT)
        if content is None:
            _LOG.warning(
                "the replies of the SuperNodes hold different numbers, or more than %d: the sum is empty; let "
                "@app.query return the same names and lengths at all of them, or give numbers=...", self._numbers
            )  # fmt: skip
        return [Message(content or RecordDict(), reply_to=given[0])]

    def _waited_for(self) -> list[int]:
        """Return the SuperNodes that are the clients, once enough are connected."""
        if self._roster is None:
            end = time.monotonic() + 10 * self._patience
            while len(connected := sorted(self._grid.get_node_ids())) < self._nodes:
                if time.monotonic() >= end:
                    raise PlanError(f"{len(connected)} SuperNodes are connected, and {self._nodes} are waited for")
                time.sleep(self._poll)
            self._roster = Roster(len(connected))
            if self._pins_identities:
                self._ask_parties(connected)
            else:
                self._roster.number(connected, connected)
        elif not self._pins_identities:
            connected = sorted(self._grid.get_node_ids())
            if new := self._roster.unknown(connected):  # a SuperNode that was started again has a new id
                self._roster.number(new, connected)
        if not self._roster.nodes:
            self._refuse()
        return [self._roster.nodes.get(party, -1) for party in range(self._roster.clients)]

    @property
    def _pins_identities(self) -> bool:
        return identities_in(as_defense(self._defense).aggregation) is not None

    def _ask_parties(self, nodes: list[int]) -> None:
        """Ask sites which clients they are: where the terms pin identities, a number goes with its identity."""
        roster, asks = self._known, {node: SumRequest(-1).content() for node in nodes}
        like = Message(RecordDict(), nodes[0], _ASKED).metadata
        for node, content in self._carrier.carry(asks, self._patience, like):
            if (party := party_named(content, node)) is not None:
                roster.name(node, party, nodes)

    @property
    def _known(self) -> Roster:
        assert self._roster is not None
        return self._roster

    def _sum(
        self, terms: SumTerms, nodes: list[int], like: Message, bound_to: tuple[Mapping[str, Any], str] | None,
        timeout: float | None,
    ) -> SumResult:  # fmt: skip
        """Carry out one sum.

        Args:
            terms: its terms.
            nodes: the SuperNodes that take part.
            like: a message whose type and group the requests get, and its content the request for the upload.
            bound_to: the base, and the digest of the content in hexadecimal; `None` for a statistic.
            timeout: seconds to wait for the uploads.
        """
        server = self._sums.setdefault(terms.digest, SumServer(terms))
        base, shown = bound_to or (None, "")
        before, begun, agreed = self._carrier.exchanges, time.monotonic(), terms.to_bytes()
        self._carrier.forget()
        cohort = [party for party in map(self._known.party, nodes) if party is not None]
        why: tuple[str, ...] = ()
        result: SumResult | None = None
        try:
            server.open(base, cohort=cohort)
            while server.result is None:
                self._stage(server, like, shown if base is not None else None, agreed, timeout)
            result = server.result
            return result
        except (RoundVoid, RangeRefused) as error:
            why = (str(error),)
            raise RoundVoid(f"{error}. {_SILENT}") from error
        finally:
            survivors = () if result is None else tuple(self._known.node(party) for party in result.survivors)
            refusals = self._carrier.refused | self._carrier.foreign
            error_of = 0.0 if result is None else max(result.error.values(), default=0.0)
            spent = time.monotonic() - begun
            exchanges = self._carrier.exchanges - before
            self.history.append(SecureRound(QUERY, exchanges, survivors, spent, why, dict(refusals), error_of))

    def _stage(self, server: SumServer, like: Message, shown: str | None, agreed: bytes, timeout: float | None) -> None:
        """Carry one stage; `shown` is the digest of the content that goes along with the request for the upload."""
        requests, uploads, carrier = server.outgoing, server.wants_updates, self._carrier
        wait = (timeout or self._patience) if uploads else self._patience
        goes_along, digest = (like.content, shown) if uploads and shown is not None else (None, "")
        nodes = {self._known.nodes[party]: party for party in requests if party in self._known.nodes}
        contents = {
            node: SumRequest(party, "", self._config, agreed, requests[party], digest).content(goes_along)
            for node, party in nodes.items()
        }
        missing = set(requests)
        for node, content in carrier.carry(contents, wait, like.metadata):
            try:
                data = reply_data(content, party := nodes[node])
            except MalformedError as error:
                carrier.refuse(node, error)
                continue
            missing.discard(party)
            server.receive({party: data}, more=bool(missing))
        asked = {self._known.node(party) for party in requests}
        refusing = (set(carrier.refused) | set(carrier.foreign)) & asked
        if refusing and server.round == 0 and len(asked) - len(refusing) < server.terms.plan.threshold:
            server.abandon()
            self._refuse()
        if missing:
            server.receive({})

    def _refuse(self) -> None:
        """Raise `ConfigError` that names a SuperNode which refuses, and its reason."""
        refused = self._carrier.refused or self._carrier.foreign
        node, reason = next(iter(refused.items()), (0, "none of them answered"))
        remedy = ALLOW if refused is self._carrier.refused else ""
        if "No query function registered with name 'statistic'" in reason:
            reason, remedy = 'its app answers no statistics; let it have @app.query("statistic") with @statistics', ""
        raise ConfigError(f"too few SuperNodes take part: {len(refused)} refuse, for instance {node}: {reason}{remedy}")

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the connected SuperNodes."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        """Return the connected SuperNodes."""
        return self._grid.get_nodes()

    def set_run(self, run: Any) -> None:
        """Set the run, as the ServerApp's grid does."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run, of the ServerApp's grid."""
        return self._grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Make a message, as the ServerApp's grid does."""
        return self._grid.create_message(*args, **kwargs)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Raise `ConfigError`: replies to single messages are what a sum hides."""
        raise ConfigError("SecureQueries sends with send_and_receive, which sums the replies")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Raise `ConfigError`: replies to single messages are what a sum hides."""
        raise ConfigError("SecureQueries sends with send_and_receive, which sums the replies")
