"""The mod of a ClientApp: it answers the stages of a sum, and calls the app only when its update is due.

In Flower a client's SuperNode hands each message of the server to a ClientApp. A mod is a function around the app: it
gets the message, the context (which Flower keeps between messages) and a function that calls the app. Here the server
runs a `SecureStrategy`, and its messages are stages of a secure sum (keys, shares, upload, unmasking; `SumClient`
answers them). The mod calls the app only at the upload, and its reply is summed instead of sent.

Each request holds the terms of the sum: number of clients, defence, shapes of an update. A sum must not mix clients to
which the server sent different records, since the difference of two sums could single one of them out. So masks and
signatures depend on a base: the model that was sent, and a digest of the message's group, all its records, and the
run's config. The digest is also one more tensor of every update, `CONTENT`, since an update has the tensors of its
base.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, overload

from flwr.app import ConfigRecord, Context, Error, Message
from flwr.common.constant import ErrorCode

from securefed._messages import SERVER
from securefed._runtime.absence import moment
from securefed.errors import ConfigError, ContradictionError, DataError, MessageRefused, StorageError
from securefed.flower._app_reply import AppReply, WrongStructure, metrics_of, summed, training_of
from securefed.flower._grid import MARK, ORDER, from_record, to_record
from securefed.flower._query_rows import asks_for_statistic, part_of, phase_of_query
from securefed.flower._reply_numbers import VALUES, packed
from securefed.flower._site import SitePolicy
from securefed.flower._sum_messages import (
    CHECKED,
    CONTENT,
    QUERY,
    TRAIN,
    SumRequest,
    base_of,
    config_digest,
    content_digest,
    digest_array,
    model_of,
    party_content,
    phase_of,
    reply_content,
    shapes_beside,
)
from securefed.parties._client import SumClient
from securefed.parties._result import SumResult
from securefed.parties._terms import SumTerms

_STATE: Final = "securefed.sum."
"""Start of the name under which the context keeps a phase's `SumClient`; the phase follows, `train` or `evaluate`."""
_STANDING: Final = "securefed.standing."
"""Likewise for this SuperNode's client number and terms in the run, which the server cannot change later."""
_LOG = logging.getLogger("securefed.flower")
App = Callable[[Message, Context], Message]


class Mod(Protocol):
    """A mod of a Flower ClientApp."""

    def __call__(self, message: Message, context: Context, call_next: App, /) -> Message:
        """Answer a message; `call_next` calls the next mod or the app."""
        ...


@overload
def secure_mod(message: Message, context: Context, call_next: App, /) -> Message: ...
@overload
def secure_mod(site: SitePolicy | None = None, /, *, reply: AppReply | None = None) -> Mod: ...


def secure_mod(
    first: Message | SitePolicy | None = None, context: Context | None = None, call_next: App | None = None, /, *,
    reply: AppReply | None = None,
) -> Any:  # fmt: skip
    """Let a ClientApp take part in the sums of a `SecureStrategy`, and of `SecureQueries`.

        app = ClientApp(mods=[secure_mod])                 # the site's rules: --node-config 'securefed="site.toml"'
        app = ClientApp(mods=[secure_mod(SitePolicy(...))])    # the rules stand in the app, which the site wrote
        app = ClientApp(mods=[secure_mod(reply=AppReply(...))])    # terms that do not fit the app are refused by name

    The functions of the app stay as they are. The mod stands first in the list, so that other mods (such as Flower's
    `fixedclipping_mod`) change an update before it is protected. A mod before it would see the stages of the sum: where
    it refuses or changes them, the run ends with an error that says so. Between two messages the client's state lies in
    the context's state, where the app does not see it, or in the site's folder.

    Guarantees: those of the defence in the terms, which the site's rules allowed (`SitePolicy`). The server reads none
    of the app's replies: an update leaves this SuperNode only inside the protected upload, and a message that is not
    one of a `SecureStrategy` is refused. Each request is answered at most once. Texts of errors reach the server only
    where they are about its own messages or terms.
    Apps that were given another message, or another `context.run_config`, are not summed.
    With identities no contribution enters two sums that subtract, in all runs that the site's ledger counts: its own
    (`SitePolicy.ledger`), or one in its folder. A site with neither forgets when the Flower run ends.
    Not guaranteed: anything against the app's own code, which reads the data and the state. Who may start apps on a
    SuperNode is Flower's to decide (`--trusted-entities`). Nor that all apps were told the same in other rounds, which
    may be void or leave one out: let the app keep nothing of a message that its later updates depend on, such as a
    learning rate. An app that raises or exits sits out; where its process is killed (out of memory), the server sees
    that this SuperNode did not answer.

    Args:
        first: Flower's message; or the site's rules, for a mod with these.
        context: Flower's context.
        call_next: calls the next mod or the app.
        reply: the structure of the app's replies, to be compared with the terms before the app is called.

    Returns:
        The answer to the message; or a mod, where `first` is none.

    Raises:
        ConfigError: other arguments.
    """
    if isinstance(first, SitePolicy) or (first is None and reply is not None):
        policy = SitePolicy.of if first is None else lambda _: first
        return lambda message, context, call_next: _answer(message, context, call_next, policy, reply)
    if not isinstance(first, Message) or context is None or call_next is None:
        raise ConfigError(
            "secure_mod takes a SitePolicy, or reply=AppReply(...); or give it to a ClientApp as it is: "
            "mods=[secure_mod]"
        )
    return _answer(first, context, call_next, SitePolicy.of, None)


def _answer(
    message: Message, context: Context, call_next: App, site: Callable[[Context], SitePolicy], reply: AppReply | None
) -> Message:
    """Answer one message; errors about this site's data, disk or app appear in its own log only."""
    try:
        return _Turn(site(context), message, context, call_next, reply).answer()
    except (_TermsRefused, MessageRefused) as error:
        _LOG.warning("a request is refused: %s", error)
        return Message(Error(code=ErrorCode.MOD_FAILED_PRECONDITION, reason=f"{MARK}{error}"), reply_to=message)
    except Exception:
        _LOG.exception("a message is not answered")
        reason = f"{MARK}this SuperNode cannot answer; its own log gives the reason"
        return Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=message)


class _TermsRefused(ConfigError):
    """This site does not allow the terms; the text is about the terms and the site's public rules."""


@dataclass
class _Turn:
    """One message and its answer.

    Attributes:
        site: the site's rules.
        message: the message; the request's records are removed from it.
        context: the SuperNode's context.
        call_next: calls the app.
        declared: the structure of the app's replies, where the app declares it.
        failed: why the app failed, or gave an update that does not fit the terms.
        weight: the weight that the app gave.
        training: number of the training by DP-SGD that the app named, in the site's ledger.
        arrived: when the message arrived.
        request: the server's request.
        phase: `train`, `evaluate`, or a name for each query, whose terms differ.
    """

    site: SitePolicy
    message: Message
    context: Context
    call_next: App
    declared: AppReply | None = None
    failed: BaseException | None = None
    weight: float = 1.0
    training: Any = None
    arrived: float = field(default_factory=moment)
    request: SumRequest = field(init=False)
    phase: str = field(init=False)

    def __post_init__(self) -> None:
        self.request = SumRequest.take(self.message)
        self.phase = phase_of(self.message)
        if self.phase == QUERY:
            self.phase = phase_of_query(self.request.terms)

    def answer(self) -> Message:
        """Return the answer: this client's number where the server asks for it, or the reply of a stage."""
        if self.request.asks_for_party:
            if self.site.party is None:
                raise _TermsRefused("the terms pin identities, and this site has none")
            return Message(party_content(self.site.party), reply_to=self.message)
        terms = self._accepted_terms()
        client = self._client(terms)
        if self.request.publishes:
            return Message(reply_content(self._checked(client, terms)), reply_to=self.message)
        own = self._put_away()  # so that the app, if it is called, does not see the client's secrets
        try:
            reply = self._receive(client, terms)
        finally:
            self.context.state.update(own)
            self._keep(client, terms)
        if self.failed is not None and self.site.announce_errors:
            if isinstance(self.failed, WrongStructure):
                raise _TermsRefused(self.failed.public)
            raise RuntimeError("the app failed, as its own log says; this site announces such failures")
        return Message(reply_content(reply), reply_to=self.message)

    def _accepted_terms(self) -> SumTerms:
        """Return the terms of the request, if this site allows them and they are those of the run so far."""
        try:
            terms = SumTerms.from_bytes(self.request.terms)
            self.site.check(terms, self.request.party)
        except (ConfigError, DataError) as error:
            raise _TermsRefused(str(error)) from error
        if not 0 <= self.request.party < terms.clients:
            raise _TermsRefused(
                f"the terms are for {terms.clients} clients, and this one is called {self.request.party}"
            )
        if self.request.run_config != config_digest(self.context.run_config):
            raise _TermsRefused(
                f"the run's config of this SuperNode holds {', '.join(sorted(self.context.run_config)) or 'nothing'}, "
                "and the server sums updates under other values; give its strategy the ServerApp's: "
                "SecureStrategy(strategy, defense, context.run_config)"
            )
        if self.site.dp_sgd and (self.phase != TRAIN or metrics_of(terms)):
            raise _TermsRefused(
                "this site sends models that DP-SGD trained, and nothing else of its rows; make SecureStrategy without "
                "train_metrics, around a strategy with fraction_evaluate=0.0"
            )
        if self.declared is not None:
            try:
                self.declared.check(terms, self.phase, self.request.weighted_by)
            except ConfigError as error:
                raise _TermsRefused(str(error)) from error
        bound = terms.base and CONTENT in terms.shapes  # else clients that were sent different records could be summed
        if not bound and not asks_for_statistic(terms, self.phase):  # whose part follows from terms and rows alone
            raise _TermsRefused("the terms do not bind updates to what the request holds; use SecureStrategy")
        standing = self.context.state.config_records.get(_STANDING + self.phase)
        if standing is not None and dict(standing) != self._standing(terms):
            raise ContradictionError(
                SERVER, f"this SuperNode takes part in this run as client {standing['party']!r} under terms with the "
                f"digest {str(standing['terms'])[:16]}, and the request says otherwise; start a new Flower run"
            )  # fmt: skip
        return terms

    def _standing(self, terms: SumTerms) -> dict[str, str | int]:
        """Return what the record under `_STANDING` holds."""
        return {"terms": terms.digest.hex(), "party": self.request.party}

    def _client(self, terms: SumTerms) -> SumClient:
        """Return the client with its newest state, from the context or from the site's folder."""
        party, site = self.request.party, self.site
        if site.folder is None:
            kept = self.context.state.array_records.get(_STATE + self.phase)
            frozen = b"" if kept is None else from_record(kept)
            return SumClient.thaw(terms, party, frozen, identity=site.identity, ledger=site.ledger)
        name = f"{self.phase}-{party}-{terms.digest.hex()[:16]}-run-{self.context.run_id}.state"
        place = Path(site.folder) / name
        if _STANDING + self.phase in self.context.state and not place.exists():
            raise StorageError(f"{place} is gone, and this client has answered in this run; start a new Flower run")
        place.parent.mkdir(parents=True, exist_ok=True)
        seal = None if site.seal is None else site.seal.for_file(name)
        return SumClient(terms, party, identity=site.identity, ledger=site.of_data(party), file=place, seal=seal)

    def _keep(self, client: SumClient, terms: SumTerms) -> None:
        """Store the client's new state and its standing in the context; nothing before it has joined a run."""
        if client.run is None:
            return
        self.context.state[_STANDING + self.phase] = ConfigRecord(dict(self._standing(terms)))
        if self.site.folder is None:
            self.context.state[_STATE + self.phase] = to_record(client.freeze())

    def _checked(self, client: SumClient, terms: SumTerms) -> bytes:
        """Check the result that the server published of the newest sum, and log it; return `CHECKED`.

        Raises:
            SumRefused: it is not that of the contributions.
            _TermsRefused: nothing can be checked here.
        """
        try:
            result, base = SumResult.from_bytes(self.request.data, terms), None
            if terms.differences:
                digest = content_digest(self.message, self.request.weighted_by, self.request.run_config)
                base = base_of(model_of(self.message, self.phase)[1], shapes_beside(terms), digest)
            client.check(result, base=base)
        except (ConfigError, DataError) as error:
            raise _TermsRefused(f"the result is not checked: {error}") from error
        _LOG.info(
            "%s: the result of round %d was checked: it follows from the sum of the contributions of clients %s",
            self.phase, result.round + 1, list(result.survivors),
        )  # fmt: skip
        return CHECKED

    def _put_away(self) -> dict[str, Any]:
        """Take this mod's records out of the context, so that the app sees its own state alone."""
        state = self.context.state
        return {name: state.pop(name) for name in list(state) if name.startswith((_STATE, _STANDING))}

    def _receive(self, client: SumClient, terms: SumTerms) -> bytes:
        """Answer the stage; at the upload, after the app was called."""
        data = self.request.data
        if not client.wants_update(data):
            return client.receive(data)
        digest = content_digest(self.message, self.request.weighted_by, self.request.run_config)
        if self.request.digest not in ("", digest.hex()):
            raise _TermsRefused(
                "this SuperNode's app would be given another model or config than the server sent, so that its update "
                f"could not be summed: something changed them on the way. For a mod of the app, {ORDER}"
            )
        _, model = model_of(self.message, self.phase)

        def update() -> Mapping[str, Any]:
            try:
                return self._update(terms, digest)
            except (Exception, SystemExit) as error:  # if the process ended, the server would miss a reply
                self.failed = error
                _LOG.exception("the app gave no update; this client sits out of the attempt")
                raise DataError(f"the app gave no update: {error!r}") from error

        base = base_of(model, shapes_beside(terms), digest) if terms.base else None
        weight = (lambda: self.weight) if terms.weighted else None  # `update` sets the weight
        trained = (lambda: self.training) if self.site.dp_sgd else None  # likewise
        return client.receive(data, update, weight=weight, base=base, arrived=self.arrived, trained=trained)

    def _update(self, terms: SumTerms, digest: bytes) -> Mapping[str, Any]:
        """Call the app, and return the tensors of its reply that are summed, with the request's digest."""
        if asks_for_statistic(terms, self.phase):
            return part_of(terms, lambda: self.call_next(self.message, self.context))
        reply = self.call_next(self.message, self.context)
        if reply.has_error():
            raise DataError(f"the app replied with an error: {reply.error.reason}")
        given, self.weight, private = summed(reply.content, terms, self.phase, self.request.weighted_by)
        if private:
            _LOG.info("metrics that the terms do not sum stay here: %s", ", ".join(private))
        if self.site.dp_sgd:
            self.training = training_of(reply.content)
            given |= packed({}, terms) if VALUES in terms.shapes else {}  # no numbers beside the model
        return {CONTENT: digest_array(digest), **given}
