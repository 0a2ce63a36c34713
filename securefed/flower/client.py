"""The ClientApp: answers the server's messages for the party that its SuperNode is."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from securefed import storage
from securefed.client_state import freeze, thaw
from securefed.coordinator import HelperNode
from securefed.datasets.base import Dataset
from securefed.errors import ConfigError, ContradictionError, SecureFedError, StorageError
from securefed.flower import enrolment
from securefed.flower.enrolment import Enrolled, Invitation
from securefed.messages import KEY_HOLDER, SERVER, PartyId
from securefed.messages import Message as Inner
from securefed.node import SETTLE, ClientNode
from securefed.privacy import check_forgetful, remembers
from securefed.sealing import Seal
from securefed.state import from_bytes
from securefed.tensors import Tensors
from securefed.terms import Terms
from securefed.transports.flower import ACTION, from_content, from_record, to_content, to_record

_STATE: Final = "securefed.state"
_RUN: Final = "securefed.run"
_KIND: Final = "client's state"
_LOG = logging.getLogger("securefed.flower")


def party_of(context: Context) -> PartyId:
    """Which party a SuperNode is, by its `--node-config`: `partition-id=3` is client 3, `role="key-holder"` that one.

    Raises:
        ConfigError: neither is given.
    """
    if context.node_config.get("role") == "key-holder":
        return KEY_HOLDER
    number = context.node_config.get("partition-id")
    if type(number) is not int or number < 0:
        raise ConfigError(
            f"this SuperNode's config names no client: partition-id is {number!r}; start it with "
            '--node-config "partition-id=0", or give client_app a `party` of your own'
        )
    return number


def client_app(
    terms: Callable[[Context], Terms],
    rows: Callable[[Context], Dataset],
    *,
    party: Callable[[Context], PartyId] = party_of,
    folder: Callable[[Context], Path] | None = None,
    seal: Callable[[Context], Seal] | None = None,
    personal: Callable[[Context, Tensors], None] | None = None,
) -> ClientApp:
    """A ClientApp that takes part in a run of `serve`.

    Args:
        terms: what this party agrees to. The server's must be the same, or it does not enrol.
        rows: this SuperNode's own data; read for every message, as Flower answers each in a process of its own.
        party: which party it is.
        folder: where to keep what the client learned, on its own disk, so that a run which goes on from a checkpoint of
            the server finds it; without one such a run is refused, unless the method's clients remember nothing.
        seal: encrypts that file.
        personal: given the client's personal result at the end of a run, for methods that have one.

    Guarantees: those of the defence, towards the server and everybody on the way. One enrolment a Flower run: a server
    cannot make a client begin anew. A message that was answered is never answered again.
    Not promised: anything against who reads the SuperNode's memory or the folder without a seal. That Flower hands the
    messages of a run to one process after the other is relied on.
    """
    app = ClientApp()
    desk = _Desk(terms, rows, party, folder, seal, personal)

    @app.query(enrolment.ACTION.removeprefix("query."))
    def enrol(message: Message, context: Context) -> Message:
        return Message(desk.enrol(message, context).content(), reply_to=message)

    @app.query(ACTION.removeprefix("query."))
    def answer(message: Message, context: Context) -> Message:
        return Message(to_content(desk.answer(message, context)), reply_to=message)

    return app


@dataclass(frozen=True)
class _Desk:
    """What answers, with nothing kept between two messages but what lies in the context."""

    terms: Callable[[Context], Terms]
    rows: Callable[[Context], Dataset]
    party: Callable[[Context], PartyId]
    folder: Callable[[Context], Path] | None
    seal: Callable[[Context], Seal] | None
    personal: Callable[[Context, Tensors], None] | None

    def enrol(self, message: Message, context: Context) -> Enrolled:
        """Agree to a run, or say why not. Errors that speak of this party's data or disk are logged here alone."""
        party = self.party(context)
        try:
            self._enrol(Invitation.read(message.content), party, context)
        except SecureFedError as error:
            _LOG.error("not enrolled: %s", error)
            public = isinstance(error, ConfigError | ContradictionError)
            return Enrolled(party, str(error) if public else f"{type(error).__name__}; its own log says more")
        return Enrolled(party)

    def _enrol(self, invitation: Invitation, party: PartyId, context: Context) -> None:
        terms = self.terms(context)
        if (begun := _run_of(context)) is not None:
            raise ContradictionError(SERVER, f"this party takes part in run {begun} already; start a new Flower run")
        if invitation.terms != terms.digest:
            raise ConfigError(
                f"the server's terms have the fingerprint {invitation.terms[:16]}, this party's {terms.digest[:16]}: "
                "algorithm, defence, public facts or seed differ; run the same app with the same config"
            )
        if party < 0:
            if party not in terms.defense.aggregation.beside:
                raise ConfigError(f"{terms.defense.name} has no use for party {party}; stop this SuperNode")
            helper = terms.defense.aggregation.helper()
            assert helper is not None
            _keep(context, helper.freeze())
        else:
            rows = self.rows(context)
            terms.check_rows(party, rows)
            node = terms.node(party, invitation.run, rows)
            check_forgetful(terms.defense, node.state.committed)
            if invitation.resumes:
                self._resume(node, invitation.resumes, context)
            self._save(node, context)
        context.state[_RUN] = ConfigRecord({"run": invitation.run})

    def answer(self, message: Message, context: Context) -> bytes:
        """The reply to one message of the protocol."""
        data, run = from_content(message.content, SERVER), _run_of(context)
        if run is None:
            raise ContradictionError(SERVER, "a message of a run that this party never enrolled in")
        inner, terms, party = Inner.decode(data, claimed_sender=SERVER), self.terms(context), self.party(context)
        frozen = from_record(context.state.array_records.get(_STATE))
        if party < 0:
            helper = terms.defense.aggregation.helper(frozen)
            assert helper is not None
            reply = HelperNode(helper, run).handle(inner)
            _keep(context, helper.freeze())
            return reply.encode()
        node = terms.node(party, run, self.rows(context))
        thaw(node, frozen)
        reply = node.handle(inner)
        self._save(node, context)  # before the reply leaves
        if inner.stage == SETTLE and self.personal is not None and (result := node.personal()) is not None:
            self.personal(context, result)
        return reply.encode()

    def _save(self, node: ClientNode, context: Context) -> None:
        frozen = freeze(node)
        _keep(context, frozen)
        if self.folder is not None:
            storage.save(
                self._file(node.client, context), _KIND, {}, {"state": from_bytes(frozen)}, self._seal(context)
            )

    def _resume(self, node: ClientNode, resumes: str, context: Context) -> None:
        if not remembers(node.state.committed):
            return
        if self.folder is None:
            raise ConfigError(
                f"the run goes on from run {resumes}, and this client kept nothing of it; give client_app a folder "
                "before the first run, or start without the server's checkpoint"
            )
        _, tensors = storage.load(self._file(node.client, context), _KIND, self._seal(context))
        if "state" not in tensors:
            raise StorageError("the file of this client's state holds none; restore it from a copy")
        thaw(node, tensors["state"].tobytes(), resumes=resumes)

    def _file(self, party: PartyId, context: Context) -> Path:
        assert self.folder is not None
        return Path(self.folder(context)) / f"client-{party}.state"

    def _seal(self, context: Context) -> Seal | None:
        return None if self.seal is None else self.seal(context)


def _run_of(context: Context) -> str | None:
    record = context.state.config_records.get(_RUN)
    return None if record is None else str(record["run"])


def _keep(context: Context, frozen: bytes) -> None:
    context.state[_STATE] = to_record(frozen)
