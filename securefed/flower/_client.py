"""Build the Flower ClientApp that runs one party (a client or the key holder) on a SuperNode.

A SuperNode is Flower's process at one site; it hands each message of the server to the ClientApp, perhaps in a new
process. The app answers two kinds: an invitation to enrol in a run (`serve` sends it once), and the messages of the
run's exchanges, each of which makes one secure sum. Between messages the party's state lies in Flower's context, and
what the client learned also in a folder of its own, if it has one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from securefed._messages import KEY_HOLDER, SERVER, PartyId
from securefed._messages import Message as Inner
from securefed._persistence.sealing import Seal
from securefed._runtime.client import COMMIT, ClientNode
from securefed._runtime.ledger import Ledger
from securefed._runtime.privacy_checks import check_stateless_clients
from securefed._runtime.terms import Terms
from securefed._tensors import Tensors
from securefed._transports import HelperNode
from securefed.datasets._base import Dataset
from securefed.errors import ConfigError, ContradictionError, DataError, MessageRefused, VersionRefused
from securefed.flower import _enrolment as enrolment
from securefed.flower._enrolment import EnrolmentReply, Invitation, check_apart
from securefed.flower._folder import ClientFolder, RunProgress, recall
from securefed.flower._grid import ACTION, from_content, from_record, to_content, to_record
from securefed.flower._site import SitePolicy
from securefed.parties._guards import check_seal

_STATE: Final = "securefed.frozen"
_RUN: Final = "securefed.run"
_LOG = logging.getLogger("securefed.flower")


def party_of(context: Context) -> PartyId:
    """Return a SuperNode's party, from its `--node-config`: `partition-id=3`, or `role="key-holder"`.

    Raises:
        ConfigError: neither is given, or `partition-id` is no whole number of at least 0.
    """
    if context.node_config.get("role") == "key-holder":
        return KEY_HOLDER
    number = context.node_config.get("partition-id")
    if type(number) is not int or number < 0:
        raise ConfigError(
            f"this SuperNode's config names no client: partition-id must be a whole number of at least 0; got "
            f"{number!r}. "
            'Start it with --node-config "partition-id=0", or give client_app a function `party`'
        )
    return number


def client_app(
    terms: Callable[[Context], Terms],
    rows: Callable[[Context], Dataset],
    *,
    party: Callable[[Context], PartyId] = party_of,
    folder: Callable[[Context], Path | str] | None = None,
    seal: Callable[[Context], Seal] | None = None,
    personal: Callable[[Context, Tensors], None] | None = None,
    ledger: Callable[[Context], Ledger] | None = None,
) -> ClientApp:
    """Build a ClientApp that takes part in a run of `serve`.

    Args:
        terms: returns the terms that this party agrees to. The party does not enrol if the server's terms differ.
        rows: returns this SuperNode's own data. It is called for every message, since Flower may answer each in another
            process.
        party: returns the party that this SuperNode runs.
        folder: returns a folder on the client's own disk for the state that the client learned, one file for each
            terms. A new run of the same terms starts from that file. A run that resumes from the server's checkpoint
            needs the folder, unless the method's clients are stateless.
        seal: returns the seal that encrypts the file.
        personal: called with the client's personal result at the end of a run, for methods that have one.
        ledger: opens the ledger of this SuperNode's data (`Ledger.open`). It counts exchanges and epsilon over all
            runs, under any terms, and refuses exchanges beyond the limits that the SuperNode's operator has set; and it
            remembers over which parties the data were summed. Without one, a folder holds such a memory
            (`client-0.ledger`), and without a folder it ends with the run.

    Guarantees: those of the defence, against the server and everything between server and client. A client enrols once
    in a Flower run, so the server cannot make it start again: the same invitation gets the same answer and changes
    nothing. The client answers each message at most once, and marks an exchange as used before it computes its answer.
    With a folder, this also holds if Flower resets the app's state, for instance after the process was killed. Error
    texts reach the server only if they are about the server's own messages or terms.
    Not guaranteed: anything against a reader of the SuperNode's memory, or of a folder without a seal. The app relies
    on Flower to hand the messages of a run to one process at a time.
    """
    app = ClientApp()
    party_app = _PartyApp(terms, rows, party, folder, seal, personal, ledger)

    @app.query(enrolment.ACTION.removeprefix("query."))
    def enrol(message: Message, context: Context) -> Message:
        return Message(party_app.enrol(message, context).content(), reply_to=message)

    @app.query(ACTION.removeprefix("query."))
    def answer(message: Message, context: Context) -> Message:
        return Message(to_content(party_app.answer(message, context)), reply_to=message)

    return app


@dataclass(frozen=True)
class _PartyApp:
    """One party of a run: it answers the server's messages; its state is kept in Flower's context between them.

    The fields are the arguments of `client_app`.
    """

    terms: Callable[[Context], Terms]
    rows: Callable[[Context], Dataset]
    party: Callable[[Context], PartyId]
    folder: Callable[[Context], Path | str] | None
    seal: Callable[[Context], Seal] | None
    personal: Callable[[Context, Tensors], None] | None
    ledger: Callable[[Context], Ledger] | None

    def enrol(self, message: Message, context: Context) -> EnrolmentReply:
        """Agree to take part in a run, or refuse; errors about this party's data or disk appear only in its own log."""
        party = self.party(context)
        try:
            self._enrol(Invitation.read(message.content), party, context)
        except Exception as error:
            _LOG.exception("not enrolled")
            public = isinstance(error, ConfigError | ContradictionError | VersionRefused)
            return EnrolmentReply(
                party, str(error) if public else f"{type(error).__name__}; its own log gives the reason"
            )
        return EnrolmentReply(party)

    def _enrol(self, invitation: Invitation, party: PartyId, context: Context) -> None:
        """Check the invitation against this party's own terms, and store its first state in Flower's context.

        Raises:
            ConfigError: the terms differ, or the run has no use for this party.
            ContradictionError: the party takes part in another run already.
        """
        terms = self.terms(context)
        begun = _progress(context)
        if begun is not None and (invitation.run, invitation.terms) == (begun.run, terms.digest):
            return  # the server did not get the answer; nothing begins anew
        if begun is not None:
            raise ContradictionError(
                SERVER, f"this party takes part in run {begun.run} already; start a new Flower run"
            )
        if invitation.terms != terms.digest:
            raise ConfigError(
                f"the server's terms have the fingerprint {invitation.terms[:16]}, this party's terms "
                f"{terms.digest[:16]}: algorithm, defence, public facts or seed differ; run the same app with the "
                "same config"
            )
        check_apart(terms)
        if party < 0:  # a helper, such as the key holder; clients are numbered from 0
            aggregation = terms.defense.aggregation
            helper = aggregation.helper(terms.public.cohort) if party in aggregation.beside else None
            if helper is None:
                raise ConfigError(f"{terms.defense.name} has no use for party {party} here; stop this SuperNode")
            _keep(context, helper.freeze(), RunProgress(invitation.run))
            return
        site = self._site(party, context)
        if site.folder is not None:
            check_seal(terms.training, site.seal)
        rows = self._own(context)
        terms.check_rows(party, rows)
        folder = _folder(terms, party, site)
        sums = site.of_data(party)  # a missing ledger raises here, before the run
        node = terms.node(party, invitation.run, rows, sums=sums)
        check_stateless_clients(terms.defense, node.state.committed)
        # the node takes over what earlier runs left in the folder
        progress = recall(folder, node, invitation.run, invitation.resumes)
        self._save(node, folder, progress, context)

    def answer(self, message: Message, context: Context) -> bytes:
        """Return the reply to one message of the protocol.

        Raises:
            MessageRefused: the message itself is at fault.
            RuntimeError: any other reason. It is in this party's own log only, because Flower sends the text of an
                error to the server.
        """
        try:
            return self._answer(message, context).encode()
        except MessageRefused:
            raise
        except Exception:
            _LOG.exception("a message is not answered")
            raise RuntimeError("this party cannot answer; its own log gives the reason") from None

    def _answer(self, message: Message, context: Context) -> Inner:
        """Restore this party's state, let it answer, and store the new state before the reply leaves."""
        data, standing = from_content(message.content, SERVER), _progress(context)
        if standing is None:
            raise ContradictionError(SERVER, "this party has not enrolled in the run of this message; enrol it first")
        terms, party = self.terms(context), self.party(context)
        inner = Inner.decode(data, claimed_sender=SERVER, limits=terms.limits)
        frozen = from_record(context.state.array_records.get(_STATE))
        # `standing` is the progress so far; `standing.next` counts the answer that this call gives
        if party < 0:
            helper = terms.defense.aggregation.helper(terms.public.cohort, frozen)
            assert helper is not None
            reply = HelperNode(helper, standing.run).handle(inner)
            _keep(context, helper.freeze(), standing.next)
            return reply
        site = self._site(party, context)
        folder = _folder(terms, party, site)
        if folder is not None and (newer := folder.ahead_of(standing)) is not None:
            _LOG.warning(
                "Flower's state of this client is older than the state in its folder: the current exchange is lost"
            )
            standing, frozen = newer  # without the secrets of the current exchange, so that it cannot be answered

        def persist(node: ClientNode) -> None:
            """Mark the exchange as used in the file, before the client computes anything for it."""
            if folder is not None:
                folder.write(standing.next, node.freeze(learned=True))

        ledger = site.of_data(party)
        node = terms.node(party, standing.run, self._own(context), ledger=ledger, sums=ledger, persist=persist)
        node.thaw(frozen)
        reply = node.handle(inner)
        self._save(node, folder, standing.next, context)  # before the reply leaves
        if reply.stage == COMMIT and self.personal is not None and (result := node.personal()) is not None:
            self.personal(context, result)
        return reply

    def _save(self, node: ClientNode, folder: ClientFolder | None, standing: RunProgress, context: Context) -> None:
        """Write what the client learned into its folder, and all of its state into Flower's context.

        The folder's file leaves out the secrets of the current exchange, so that a process that starts from it cannot
        answer that exchange a second time.
        """
        if folder is not None:
            folder.write(standing, node.freeze(learned=True))
        _keep(context, node.freeze(), standing)

    def _own(self, context: Context) -> Dataset:
        """Read this party's rows; the cause of a failure is written to this party's log only."""
        try:
            return self.rows(context)
        except Exception as error:
            raise DataError("this party's rows cannot be read") from error

    def _site(self, party: PartyId, context: Context) -> SitePolicy:
        """Return what this SuperNode keeps for itself, as the arguments of `client_app` say."""
        folder = None if self.folder is None else self.folder(context)
        seal = None if self.seal is None or folder is None else self.seal(context)
        ledger = None if self.ledger is None else self.ledger(context)
        return SitePolicy(party=party, ledger=ledger, folder=folder, seal=seal)


def _folder(terms: Terms, party: PartyId, site: SitePolicy) -> ClientFolder | None:
    """Return this client's file for these terms; `None` where the app was given no folder."""
    if site.folder is None:
        return None
    return ClientFolder(Path(site.folder) / f"client-{party}-{terms.digest[:16]}.state", site.seal)


def _progress(context: Context) -> RunProgress | None:
    """Return this party's progress in its run, from Flower's context; `None` before it enrolled."""
    record = context.state.config_records.get(_RUN)
    return None if record is None else RunProgress.of(record)


def _keep(context: Context, frozen: bytes, standing: RunProgress) -> None:
    """Store a party's state and progress in Flower's context."""
    context.state[_STATE] = to_record(frozen)
    context.state[_RUN] = ConfigRecord(dict(standing.fields()))
