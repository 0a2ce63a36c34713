"""The client's side of a sum: each request of the server is answered with bytes.

A round makes one sum of the clients' updates. It takes one attempt (an exchange), or several where attempts are void;
each goes in stages, such as keys, shares, upload and unmasking, with one request and reply for each client. Only the
request for the upload needs the update. A user's training loop holds one `SumClient` at each client and passes it every
request that comes. `SumNode` does the protocol; this class reads updates, weights and the base (the model that the
update was computed from), and keeps the state in a file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from securefed._messages import SERVER, ClientId, Message
from securefed._persistence.frozen import complete, frozen, thawed
from securefed._persistence.packing import from_bytes, unnest
from securefed._persistence.sealing import Seal
from securefed._persistence.state_file import StateFile
from securefed._runtime.absence import hold, moment
from securefed._runtime.client_state import PendingUpload
from securefed._runtime.exchange_context import tensors_digest
from securefed._runtime.ledger import Ledger
from securefed._runtime.ledger_entries import DataUsage, LedgerEntries
from securefed._runtime.sum_memory import SumMemory
from securefed._tensors import Array, Tensors
from securefed.errors import ConfigError, LedgerLost
from securefed.parties._checked_result import checked_result
from securefed.parties._envelope import check_key, header, unwrap
from securefed.parties._guards import check_seal, open_beside, run_budget
from securefed.parties._node import PartyNode
from securefed.parties._precision import lost_entirely
from securefed.parties._result import SumResult
from securefed.parties._terms import SumTerms, check_terms
from securefed.parties._update import (
    Trained,
    build_nothing,
    check_rows,
    check_trained,
    contribution,
    given_metrics,
    given_weight,
    number,
    read_update,
    structure,
)

Update = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
"""Arrays or tensors by name, or a function that computes them when they are due."""
Weight = float | Callable[[], float]
_LOG = logging.getLogger("securefed.client")
_KIND: Final = "client's state of a sum"
_GIVEN, _BESIDE, _FROZEN = "given", "beside", "frozen"
"""Places of the memory of sums: the caller's ledger, one beside the file, or the state itself (`freeze`)."""


class SumClient:
    """One client of a sum. It answers each request of the server, and each exchange at most once.

    Args:
        terms: what all parties agreed on.
        party: this client's number, 0 to N - 1.
        identity: this client's private identity (`new_identity`), where the terms pin identities.
        ledger: of this client's data set (`Ledger.open`), the same in every run: it counts the use of the data, and
            remembers over which parties they were summed, so that no two sums subtract. Without one, a client with a
            file keeps such a memory beside it (`client-0.ledger` for `client-0.state`), which outlives the state; one
            without a file has it in memory and in `freeze`. Either way `terms.epsilon` limits this run.
        file: where the state is kept: written before anything is computed and after every answer, so that the client
            may be another process for every message. An existing file is continued. Of two processes that read the
            same state, one answers; the other gets a `StorageError`.
        seal: encrypts the file, which holds secrets; without one only its owner may read it.
        server: the server's public key, pinned here: requests that it did not sign are refused. Needed where the
            transport does not say who wrote a request, such as a shared folder: there every site could play the server.
            Get it from the server's operator, not from the terms.

    The client belongs to the run of the first request that it accepts, and refuses messages of other runs. Make a new
    one for every run: a server that is given fresh clients gets answers in as many runs as there are of them, so give
    all of them one `ledger`, which limits their number.

    Guarantees: those of the defence (`terms.plan`). Whether it answers, and what it refuses, does not depend on the
    update's values: an update that is not finite or beyond its bound, or a function that fails, makes the client sit
    out, and the round is repeated without the server learning which client it was (under a defence that hides uploads).
    A client that sat out of 8 exchanges of a run or of a base, or of 64 in all that its ledger counts, declines others,
    which the server sees: that bounds what it learns by asking in several rounds with other cohorts. A round that is
    void because of this client is tried again, 8 times in all by default, so that one update that stays broken can use
    up all 8.
    Not guaranteed: that another client's update is honest. That a state which answered a request is not used again,
    where the caller restores an old copy of it: one upload may then be masked twice alike. That the time of a reply
    tells nothing of a function that computes the update: a client that sits out encodes, masks and logs as long as one
    that contributes, but a function that fails early ends early, unless the terms name a time (`answer_after`).

    Raises:
        ConfigError: a number outside the terms, an identity that does not fit them, or a file without a seal where
            clients check sums (`verify`).
        LedgerLost: the file was written with a ledger, which is gone.
        StorageError: the file is of another client, run or terms, or cannot be read.
    """

    def __init__(
        self,
        terms: SumTerms,
        party: ClientId,
        *,
        identity: bytes | None = None,
        ledger: Ledger | None = None,
        file: Path | str | None = None,
        seal: Seal | None = None,
        server: bytes | None = None,
    ) -> None:
        check_terms(terms)
        self._server = check_key("server", server)
        if type(party) is not int or not 0 <= party < terms.clients:
            raise ConfigError(f"party must be a whole number from 0 to {terms.clients - 1}; got {party!r}")
        self.terms, self.party = terms, party
        own = terms.for_party(party, identity)
        self._facts = terms.core if own is terms.defense else replace(terms.core, defense=own)
        if file is not None:
            check_seal(terms.plan, seal)
        self._file = None if file is None else StateFile(file, _KIND, seal)
        hides = terms.defense.aggregation.hides  # else there is nothing to remember
        self._beside = partial(open_beside, Path(file), seal) if file is not None and hides else None
        self._ledger, self._kept = ledger, _GIVEN  # the ledger of the data, and where the memory of sums is kept
        self._budget = run_budget(terms)  # of this run; its entries, the "book", freeze with it
        self._node: PartyNode | None = None
        self._trained: Trained | None = None  # that made the update at hand
        self._said = False  # that nothing is left of a tensor, which is logged once
        if self._file is not None:
            self._file.restore(self._restore)

    @property
    def run(self) -> str | None:
        """The run that this client belongs to; `None` before the first request."""
        return None if self._node is None else self._node.run

    @property
    def spent(self) -> DataUsage | None:
        """Exchanges answered and epsilon spent, as the ledger counts them; without one in this run, where it counts."""
        counting = self._ledger or self._budget
        return None if counting is None else counting.spent

    def wants_update(self, request: bytes) -> bool:
        """Tell whether a request asks for the contribution, so that `receive` needs the update.

        Raises:
            MessageRefused: as `receive`.
        """
        return self._read(request).stage == self._facts.defense.aggregation.upload

    def receive(
        self,
        request: bytes,
        update: Update | None = None,
        *,
        weight: Weight | None = None,
        metrics: Mapping[str, float] | None = None,
        base: Mapping[str, Any] | None = None,
        arrived: float | None = None,
        trained: Trained | None = None,
    ) -> bytes:
        """Answer one request; where the terms name a time for it (`answer_after`), wait until then.

        Args:
            request: the bytes from the server.
            update: arrays or tensors by name, or a function that computes them, called only when they are due. Further
                tensors that the terms keep local may be among them. Not looked at by requests that do not need it.
            weight: the update's weight, from 0 to the terms' `largest_weight` (number of rows), or a function that
                returns it, called after the update was computed; 1 by default. Leave it out where the terms declare no
                largest weight, as under noise: every client then weighs the same.
            metrics: by name, this client's metrics; all that the terms name.
            base: the model that the update was computed from, where the terms bind one.
            trained: the update's training by DP-SGD, counted by this client's ledger (`Ledger.reserve`): the exchange
                costs no more epsilon. Nothing else of the rows may be in the update; the weight is public. Or its
                `number`, once it is recorded, or a function that returns either, where `update` trains.
            arrived: `time.monotonic()` when the request arrived, where the update was computed since; now by default.

        Returns:
            The reply for the server. It may be a refusal, also where the ledger allows no further exchange.

        Raises:
            MalformedError: the bytes are no message of this protocol, or too long for one of these terms.
            AuthenticationError: the pinned server did not sign it.
            VersionRefused, TermsDiffer: the server speaks another version, or has other terms.
            ConfigError, DataError: the request needs the update, and it is missing, or of other names, shapes or types
                than the terms; or a weight is given, and the terms have none. Nothing was answered; call again with the
                right one.
            BudgetSpent: with the training, the ledger is beyond a limit. Nothing was answered.
            StorageError: the state cannot be written. Nothing was answered.

        Warns:
            LateAnswerWarning: the answer is later than the terms say.
        """
        arrived = moment() if arrived is None else arrived
        message = self._read(request)
        node = self._node = self._node or self._enrol(message.run)
        if message.stage != self._facts.defense.aggregation.upload:
            begun = node.begin(message)
            assert isinstance(begun, Message)  # no other request needs a contribution
            reply = begun
        else:
            check_trained(self.terms, self._ledger if self._kept == _GIVEN else None, trained)
            self._trained, node.trained = trained, trained is not None
            reply = self._contribute(node, message, update, weight, dict(metrics or {}), base)
        if node.state.last_round < 0:  # it refused the message and opened no exchange: it belongs to no run yet
            self._node = None
        else:
            self._save()
        encoded = reply.encode(before=header(self.terms.digest))
        if message.stage == self._facts.defense.aggregation.upload:
            hold(self.party, arrived, self.terms.answer_after)
        return encoded

    def check(self, result: SumResult, *, base: Mapping[str, Any] | None = None) -> SumResult:
        """Check a result that the server published, against the key of its sum, which only the clients know.

        The means and totals are computed again from the sum that the server announced, after the check that this is the
        sum of the contributions of the clients that it names. A later round's request for the upload checks the sum
        before it, too; this checks the last or only one, and what the server computed from it.

        Args:
            result: the published result, with its `announced` sum.
            base: the model that the updates were computed from, where the terms sum differences.

        Returns:
            The result as it follows from the announced sum.

        Raises:
            SumRefused: the announced sum is not that of the contributions, or the result does not follow from it.
            MalformedError: the announced bytes are none, or too long.
            ConfigError: nothing can be checked: the terms do not verify, this client is not waiting for this round's
                result, or the base is not the one that its update was computed from.
        """
        model = self._model(base) if self.terms.differences else None
        bound = None if self._node is None else self._node.base
        if model is not None and bound is not None and tensors_digest(model) != bound:
            raise ConfigError(
                "the base is not the one that this client computed its update from; give the model of the round whose "
                "result is checked"
            )
        return checked_result(self.terms, self._node, result, model)

    def prepare(self) -> None:
        """Compute the masks of the next upload now, while the update is being computed or the client waits."""
        if self._node is not None:
            self._node.prepare()

    def freeze(self) -> bytes:
        """Return the whole state, secrets included; empty before the first request. Inverse: `thaw`.

        Keep only the newest, where only this client can read it: a state that answered a request must not be used
        again.
        """
        if self._node is None:
            return b""
        values = {
            "run": self._node.run,
            "book": None if self._budget is None else self._budget.book.to_json(),
            "ledger": self._kept,
            "base": (self._node.base or b"").hex(),
        }
        return frozen(self._name, {"terms": self.terms.digest.hex()}, values, {"node": from_bytes(self._node.freeze())})

    @classmethod
    def thaw(
        cls, terms: SumTerms, party: ClientId, frozen: bytes, *, identity: bytes | None = None,
        ledger: Ledger | None = None, server: bytes | None = None,
    ) -> Self:  # fmt: skip
        """Restore a client from `freeze`, with the same terms, number, identity, ledger and pinned server.

        Raises:
            StorageError: these bytes are no state of this client.
        """
        client = cls(terms, party, identity=identity, ledger=ledger, server=server)
        if frozen:
            client._restore(frozen)
        return client

    def _read(self, request: bytes) -> Message:
        limits, pinned = self.terms.core.limits, self._server
        data = unwrap(self.terms.digest, request, SERVER, limits=limits, pinned=pinned)
        return Message.decode(data, claimed_sender=SERVER)

    def _contribute(
        self, node: PartyNode, message: Message, update: Update | None, weight: Weight | None,
        metrics: Mapping[str, float], base: Mapping[str, Any] | None,
    ) -> Message:  # fmt: skip
        """Answer the request for the upload; what the caller gave is checked before the request is accepted."""
        if update is None:
            raise ConfigError("this request asks for the contribution; give the update: receive(request, update, ...)")
        for name, value in (("update", update), ("base", base)):
            if hasattr(value, "state_dict"):
                raise ConfigError(
                    f"{name} is a {type(value).__name__}; give its values by name: {name}=net.state_dict()"
                )
        model = self._model(base)
        node.base = None if model is None else tensors_digest(model)
        due, metrics = given_weight(self.terms, weight), given_metrics(self.terms, metrics)
        if not callable(update):
            update = structure(update, self.terms)
        begun = node.begin(message)
        if isinstance(begun, Message):
            return begun
        return node.finish(begun, self._computed(node, begun, update, due, metrics, model))

    def _computed(
        self, node: PartyNode, pending: PendingUpload, update: Update, weight: Weight, metrics: Mapping[str, float],
        base: Mapping[str, Array] | None,
    ) -> tuple[Any, Tensors] | Exception:  # fmt: skip
        """Build the contribution, beside the client's next state; an exception stands for a client that sits out."""
        if pending.fault is not None:
            return pending.fault
        try:
            given = structure(update() if callable(update) else update, self.terms)
            check_trained(self.terms, self._ledger, self._trained, ended=True)  # a function may have trained just now
            check_rows(self.terms, given)
            count = number(weight(), "weight") if callable(weight) else weight
            if count > self.terms.largest_weight:
                _LOG.warning(
                    "client %d: the weight %g is beyond the largest that the terms allow, %g; make them with "
                    "largest_weight=%g", self.party, count, self.terms.largest_weight, count,
                )  # fmt: skip
            out = contribution(self.terms, given, count, metrics, base)
            self._say_what_is_lost(pending, out)
            return node.state.committed, out
        except Exception as error:
            build_nothing(self.terms, base)
            return error

    def _say_what_is_lost(self, pending: PendingUpload, out: Tensors) -> None:
        """Log once that rounding leaves nothing of a tensor: in this client's own log, and it answers all the same."""
        assert pending.state.session is not None
        if not self._said and (lost := lost_entirely(pending.state.session.plan, out)):
            self._said = True
            _LOG.warning(
                "client %d: all entries of %s are below half a step of fixed point, and are sent as zeros; make terms "
                "with bounds near the entries", self.party, ", ".join(lost),
            )  # fmt: skip

    def _model(self, base: Mapping[str, Any] | None) -> dict[str, Array] | None:
        """Read the base; raise `ConfigError` where it is missing or the terms bind none."""
        if base is None:
            if self.terms.base:
                raise ConfigError(
                    "these terms bind each round to the model that the update was computed from; give it as base=..., "
                    "or make the terms with base=False"
                )
            return None
        if not self.terms.base:
            raise ConfigError("a base is given, and the terms bind none; make them with base=True, or leave it out")
        return read_update(base, self.terms.shapes, "the base")

    def _enrol(self, run: str, *, expected: bool = False) -> PartyNode:
        """Make this client's node for a run.

        Args:
            run: the run.
            expected: whether a state says that there is a ledger beside it.
        """
        if self._ledger is None and self._beside is not None:
            self._ledger, self._kept = self._beside(expected=expected), _BESIDE
        elif self._ledger is None:
            self._kept = _FROZEN
        node = PartyNode(self.party, run, self._facts, ledger=self._ledger, persist=lambda _: self._save())
        node.budget = self._budget
        return node

    def _save(self) -> None:
        if self._file is not None:
            self._file.write(self.freeze())

    @property
    def _name(self) -> str:
        return f"client {self.party} of a sum"

    def _restore(self, data: bytes) -> None:
        """Take the state that `freeze` returned; raise `StorageError` where it is not one of this client."""
        owner = {"terms": self.terms.digest.hex()}
        values, tensors = thawed(data, self._name, owner, "give the terms that it was written with", older=(None,))
        with complete(self._name):
            if self._budget is not None and (book := values["book"]):  # of release 0.1 a text
                read = json.loads(book) if isinstance(book, str) else book
                self._budget = run_budget(self.terms, LedgerEntries.from_json(read))
            kept = values.get("ledger", "")
            if self._ledger is None and (kept == _GIVEN or (kept == _BESIDE and self._beside is None)):
                raise LedgerLost(
                    f"client {self.party} has answered with a ledger of its data; give it: "
                    "SumClient(..., ledger=Ledger.open(path, limits))"
                )
            node = self._enrol(values["run"], expected=kept == _BESIDE)
            node.thaw(tensors["node"].tobytes())
            node.base = bytes.fromhex(values.get("base", "")) or None
            if self._ledger is None and (sums := unnest("sums", tensors)):  # release 0.1 wrote them here
                node.sums.remember(SumMemory.from_tensors(sums))
        self._node = node
