"""The server's side of a sum: it makes requests, takes replies, and opens the sum of each round.

A round makes one sum of the clients' updates. It takes one attempt, or several where attempts are void; an attempt (an
exchange) goes in stages, such as keys, shares, upload and unmasking, with one request and reply for each client. The
caller carries the bytes. `SumRun` makes the sums; this class adds terms, files and results.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from securefed._messages import ClientId, PartyId, Transcript
from securefed._persistence.frozen import complete, frozen, thawed
from securefed._persistence.packing import from_bytes, nest, unnest
from securefed._persistence.sealing import Seal
from securefed._persistence.state_file import StateFile
from securefed._runtime.exchange_header import TRAIN
from securefed._runtime.open_exchange import ExchangeResult, Requests
from securefed._runtime.privacy_checks import coins_of, sampler_of
from securefed._runtime.sum_run import SumRun
from securefed._tensors import Array
from securefed.errors import ConfigError, MessageRefused, PrecisionWarning, SecureFedError
from securefed.parties._envelope import check_key, unwrap, wrap
from securefed.parties._node import broadcast_of
from securefed.parties._result import CompletedSum, SumResult, imprecise, result_of
from securefed.parties._terms import SumTerms, check_terms
from securefed.parties._update import read_update

_KIND: Final = "server's state of a sum"
_PARTY: Final = "the server of a sum"
_LOG = logging.getLogger("securefed.server")


class SumServer:
    """The server of a sum, round after round.

        server.open(base=model)
        while server.result is None:
            server.receive(carry(server.outgoing))

    Args:
        terms: what all parties agreed on.
        run: identifier of the run; a fresh one by default.
        keep_transcript: keep all messages in `transcript`, for an audit. It grows with rounds x clients x tensors.
        file: where the state is kept, written at every new stage and before a sum is opened, so that a server that was
            killed goes on. An existing file is continued: where a round is open, `outgoing` holds its requests, and
            where one was completed, `result` is there again. If its sum cannot be opened, the round is given up.
        seal: encrypts the file; without one only its owner may read it.
        identity: the server's private key (`new_identity`), which signs its requests. Needed where the transport does
            not say who wrote a request, such as a shared folder; clients pin its public key (`SumClient(server=...)`).

    Raises:
        ConfigError: an identity that is not 32 bytes; a budget that does not belong to the defence's noise, or cohorts
            not drawn as its accountant assumes.
        StorageError: the file is of another run or terms, or cannot be read.
    """

    def __init__(
        self,
        terms: SumTerms,
        *,
        run: str | None = None,
        keep_transcript: bool = False,
        file: Path | str | None = None,
        seal: Seal | None = None,
        identity: bytes | None = None,
    ) -> None:
        check_terms(terms)
        self.terms = terms
        self._identity = check_key("identity", identity)
        self._keep = keep_transcript
        self._file = None if file is None else StateFile(file, _KIND, seal)
        self._sums = self._make(run)
        self._base: dict[str, Array] | None = None
        self._warned = False  # that a result's error exceeds its size, which is said once a run
        self._summed: CompletedSum | None = None
        self.result: SumResult | None = None
        """The result of the last round; `None` while a round is being made, and before the first."""
        if self._file is not None:
            self._file.restore(self._restore)

    @property
    def run(self) -> str:
        """The run's identifier."""
        return self._sums.transcript.run

    @property
    def round(self) -> int:
        """Number of rounds that gave a result; void and abandoned ones are not counted."""
        return len(self._sums.history)

    @property
    def epsilon(self) -> float:
        """Epsilon of all exchanges so far, void ones included; infinite after one without noise, 0 before any."""
        return self.terms.epsilon_after(self._sums.sums)

    @property
    def transcript(self) -> Transcript:
        """The record of the run; it holds messages and sums only with `keep_transcript`."""
        return self._sums.transcript

    @property
    def void(self) -> tuple[str, ...]:
        """Why earlier attempts at the open round were void; empty between rounds."""
        return () if self._sums.pending is None else tuple(self._sums.pending.void)

    @property
    def refusals(self) -> Mapping[PartyId, str]:
        """By party, why its message was refused in the open attempt so far, or why it refused the server's."""
        return {} if self._sums.exchange is None else dict(self._sums.exchange.refusals)

    def open(
        self, base: Mapping[str, Any] | None = None, *, cohort: Sequence[ClientId] | None = None
    ) -> Mapping[PartyId, bytes]:
        """Begin the next round, and return its first requests.

        Args:
            base: the model that this round's updates are computed from, where the terms bind one. Send it to the
                clients as you like: they refuse the round if theirs is another.
            cohort: numbers of the clients to invite; a uniform draw of `terms.cohort` clients by default.

        Raises:
            ConfigError: a round is open; a base is missing or not expected; a cohort that is none, or that the
                accountant does not allow.
            DataError: the base lacks a tensor of the terms, or holds one of another shape.
            BudgetSpent: the privacy budget allows no further exchange; the state is saved, and nothing was sent.
        """
        if self._sums.exchange is not None:
            raise ConfigError("a round is open; receive its replies until `result` is there, or `abandon` it")
        if (base is None) == self.terms.base:
            raise ConfigError(
                "these terms bind each round to a model; give it: open(base=model)"
                if base is None
                else "these terms bind no model to a round; leave the base out"
            )
        if self.terms.rounds is not None and self._sums.position >= self.terms.rounds:
            raise ConfigError(f"the terms have {self.terms.rounds} rounds, and all of them are complete or given up")
        cohort = self._cohort(cohort)
        self._base = None if base is None else read_update(base, self.terms.shapes, "the base")
        self._summed = self.result = None
        try:
            self._sums.begin(TRAIN, cohort)
        finally:
            self._save()
        return self.outgoing

    @property
    def outgoing(self) -> Mapping[PartyId, bytes]:
        """The requests to all parties that have not replied yet, by number; negative numbers are helpers.

        Each is encoded when it is looked up, and not kept: a thousand clients' requests need not lie in memory at once.
        """
        if self._sums.exchange is None:
            return {}
        requests = self._sums.exchange.outgoing
        return Requests(requests, lambda party: wrap(self.terms.digest, requests[party], self._identity))

    @property
    def wants_updates(self) -> bool:
        """Whether the requests of this stage ask for the clients' contributions."""
        exchange = self._sums.exchange
        return exchange is not None and exchange.stage == self.terms.defense.aggregation.upload

    def receive(self, replies: Mapping[PartyId, bytes], *, more: bool = False) -> SumResult | None:
        """Take replies; then end the stage, so that `outgoing` holds the next stage's requests or `result` is there.

        `refusals` holds why a reply is refused. A party counts as missing if no valid reply of it came in this stage.

        Args:
            replies: by party, the reply as it arrived. Parties that are missing have dropped out.
            more: further replies of this stage are to come, so that it ends only when all parties have replied.

        Returns:
            The round's result, or `None` while it is being made.

        Raises:
            ConfigError: no round is open.
            RoundVoid: the round was void `terms.max_void` times and is given up. Open the next one, with the clients
                that are there; a round given up counts among `terms.rounds`.
            DataError: the survivors' weights sum to zero, so that there is no mean; the round is given up.
            RangeRefused: a client's values stay out of range in all attempts, in the clear; elsewhere the client sits
                out, and the round ends with `RoundVoid`. Or the range was doubled as often as it may be.
            DivergenceError: a client's values are not finite, and the defence hides nothing.
            BudgetSpent: the round has to be repeated, and the privacy budget does not allow it.
            StorageError: the state cannot be written.

        Warns:
            PrecisionWarning: the stated error of a mean or metric is larger than that itself; once a run.
        """
        exchange = self._sums.exchange
        if exchange is None:
            raise ConfigError("no round is open; call open(...) first")
        if not isinstance(replies, Mapping):
            raise ConfigError(f"replies are bytes by party number, {{3: reply}}; got {type(replies).__name__}")
        for party, data in replies.items():
            try:
                exchange.receive(party, unwrap(self.terms.digest, data, party))
            except MessageRefused as error:
                exchange.refusals[party] = str(error)
        if more and not exchange.complete_stage:
            return None
        if exchange.opens:
            self._save()  # a sum that is opened is never lost: to open one over fewer clients instead would leak
        return self._close_stage()

    def abandon(self) -> None:
        """Give up the round that is open. Clients answer nothing more of it, and it counts among `terms.rounds`."""
        self._give_up()
        self._save()

    def discard_prepared(self) -> None:
        """Forget the keys that the last round prepared, so that the next one agrees on keys anew.

        A round with prepared keys begins with the upload. Clients that were started anew without their state have no
        such keys and would refuse it.
        """
        self._sums.prepared = b""
        self._save()

    def freeze(self) -> bytes:
        """Return the whole state, in the middle of a round too, secrets included. Inverse: `thaw`."""
        base = self._base or {}
        values = {
            "run": self.run,
            "base": None if self._base is None else sorted(base),
            "warned": self._warned,
            "result": None if self._summed is None else self._summed.to_json(),
        }
        tensors = nest("base", base) | {"engine": from_bytes(self._sums.freeze())}
        if self._summed is not None:
            tensors |= nest("released", self._summed.released) | nest("announced", self._summed.announced)
        return frozen(_PARTY, {"terms": self.terms.digest.hex()}, values, tensors)

    @classmethod
    def thaw(
        cls, terms: SumTerms, frozen: bytes, *, keep_transcript: bool = False, identity: bytes | None = None
    ) -> Self:
        """Restore a server from `freeze`, with the same terms and identity.

        The state does not hold replies that arrived after `freeze`. Deliver them again if you kept them: clients do not
        make them a second time, and count as dropped out of the attempt, which is repeated if too few are left. With
        identities a client remembers which
        clients were in a sum with its contribution, and signs no other clients for the same contribution. Without them,
        a sum that was opened after `freeze` may be made again over fewer clients. The server could subtract the two
        sums and learn the contribution of a client that is only in one; `file` prevents that.

        Raises:
            StorageError: these bytes are no state of a server of these terms.
        """
        server = cls(terms, keep_transcript=keep_transcript, identity=identity)
        server._restore(frozen)
        return server

    def _make(self, run: str | None) -> SumRun:
        return SumRun(
            self.terms.core, run, {"algorithm": "a sum"}, max_void=self.terms.max_void, budget=self.terms.budget(),
            keep=self._keep, broadcast=lambda round: broadcast_of(self._base, round),
        )  # fmt: skip

    def _cohort(self, chosen: Sequence[ClientId] | None) -> tuple[ClientId, ...]:
        """Check the cohort that the caller chose; draw one where it chose none.

        The caller may choose unless epsilon rests on a random one: drawn in secret, as the accountant assumes, or by
        each client for itself. Where it may and does not, the draw is from seed 0, which is public.
        """
        terms, everyone = self.terms, range(self.terms.clients)
        if chosen is None:
            return self._sums.draw(0)
        cohort = tuple(sorted(set(chosen)))
        if len(cohort) != len(chosen) or not 0 < len(cohort) <= terms.cohort or not set(cohort) <= set(everyone):
            allowed = f"1 to {terms.cohort} different clients, numbered 0 to {terms.clients - 1}"
            raise ConfigError(f"a cohort holds {allowed}; got {list(chosen)}")
        if sampler_of(terms.defense) != "full" or coins_of(terms.defense) is not None:
            raise ConfigError(f"{terms.defense.name} accounts for a secret random cohort; leave `cohort` out")
        return tuple(int(client) for client in cohort)

    def _close_stage(self) -> SumResult | None:
        """End the stage: go to the next one, to another attempt where this one is void, or to the result."""
        try:
            if (summed := self._sums.close_stage()) is not None:
                self._complete(summed)
        except SecureFedError:
            self.abandon()
            raise
        coarse = [] if self._warned or self.result is None else imprecise(self.result)
        self._warned = self._warned or bool(coarse)
        self._save()
        if coarse:  # after the result is kept, as a caller may have warnings raised as errors
            warnings.warn(
                f"the stated error is larger than the mean or sum itself: {'; '.join(coarse[:3])}; declare bounds near "
                "the largest entries and a largest_weight near the weights",
                PrecisionWarning,
                stacklevel=3,
            )
        return self.result

    def _give_up(self) -> None:
        """End the round without a result.

        If an attempt was made, the round counts as given up, so that the next one has another number: a client answers
        no attempt of a round twice.
        """
        if (self._sums.position, TRAIN) in self._sums.tried:
            self._sums.given_up += 1
        self._sums.exchange = self._sums.pending = None

    def _complete(self, summed: ExchangeResult) -> None:
        """End the round with a result."""
        sums = self._sums
        assert sums.exchange is not None
        header, entry = sums.exchange.content.header, sums.entry(summed)
        kept = CompletedSum(
            summed.record.released, entry.survivors, header.doublings, header.learned, entry.round, entry.void,
            entry.refusals, summed.announced, sums.given_up,
        )  # fmt: skip
        result = result_of(self.terms, kept, self._base)  # first, as it raises where there is no mean
        sums.counted(summed, {})
        sums.history.append(entry)
        self._summed, self.result = kept, result
        sums.exchange = sums.pending = None

    def _save(self) -> None:
        if self._file is not None:
            self._file.write(self.freeze())

    def _restore(self, data: bytes) -> None:
        owner = {"terms": self.terms.digest.hex()}
        values, tensors = thawed(data, _PARTY, owner, "give the terms that it was written with", older=(None,))
        with complete(_PARTY):
            if isinstance(values["base"], str):  # release 0.1 wrote these as texts
                names = "base", "warned", "result"
                values |= {name: json.loads(values.get(name, "false")) for name in names}
            self._sums = self._make(values["run"])
            base, summed = unnest("base", tensors), values["result"]
            self._base = None if values["base"] is None else {name: base[name] for name in values["base"]}
            self._warned = values["warned"]
            if summed is not None:
                self._summed = CompletedSum.from_json(summed, unnest("released", tensors), unnest("announced", tensors))
                self.result = result_of(self.terms, self._summed, self._base)
            self._sums.thaw(tensors["engine"].tobytes())
        # If all replies were saved, open the sum now. If some are missing, wait: the survivors are settled, so that
        # later replies open the same sum.
        exchange = self._sums.exchange
        if exchange is not None and exchange.opens and exchange.complete_stage:
            try:
                self._close_stage()
            except SecureFedError as error:
                _LOG.warning("the round that was open is given up: %s", error)
