"""The terms of a sum: what all parties agree on before it, and derive every plan from.

One party makes them (`SumTerms.like`) and gives the others their bytes (`to_bytes`); each makes its `SumClient` or
`SumServer` from them. From the terms follows the plan: for each tensor its fixed-point step and error bound, for the
protocol its stages, threshold and bytes, and epsilon where the defence adds noise.

In a round, client i with update x_i and weight w_i sends, protected, `update.NAME` = (w_i / W) x_i, `weight` = w_i / W
and its metrics as `metric.NAME`, where W is `largest_weight`, so that no entry exceeds the bound of its tensor. The
server learns the sums over the clients that took part, and divides: mean = sum_i w_i x_i / sum_i w_i. Metrics are
neither weighted nor divided: the result holds their plain sums, as of numbers of rows or of right predictions. Without
weights (the default) client i sends `update.NAME` = x_i alone, and the server divides their sum by the number of
clients that took part, under noise by the planned number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Final, Self

from securefed._hyperparameters import check_integer, check_number, check_positive
from securefed._messages import PartyId
from securefed._runtime.exchange_header import MAX_VOID, TRAIN, ExchangeSchedule
from securefed._runtime.privacy_checks import check_sampling
from securefed._runtime.privacy_cost import epsilon_after
from securefed._runtime.sum_facts import SumFacts, SumSchema
from securefed._tensors import Layout, Ring, TensorSpec, real_array
from securefed.defenses._aggregation_facts import identities_in, with_identities
from securefed.defenses._base import Defense, Plan
from securefed.defenses._chain import Link, as_defense
from securefed.defenses._differential_privacy import Budget, CentralGaussian
from securefed.defenses._differential_privacy.distributed import DistributedNoise
from securefed.defenses._grouped_sums import check_cohort
from securefed.errors import ConfigError, DataError
from securefed.parties._envelope import LONGEST
from securefed.parties._guards import check_minima, notes, rule_of
from securefed.parties._node import broadcast_of
from securefed.parties._precision import BATCH_NORM, check_declared, noted
from securefed.parties._terms_parts import (
    METRIC,
    UPDATE,
    WEIGHT,
    SummedTensor,
    as_plain,
    changes_updates,
    check_alike,
    check_type,
    clips,
    defense_from_json,
    defense_to_json,
    is_local,
    power_of_two,
    with_plain_numbers,
    with_tuples,
)
from securefed.parties._terms_parts import pipelined as pipelined_by

_FORMAT: Final = 1
_LARGEST_ENTRY: Final = 2.0**20
"""Bound of an entry or a metric where the caller declares none. In a ring of 64 bits and for 1000 clients the rounding
error of an entry is then 6e-11 where weights are near the largest; at half the bound it is half as large. Coarser sums
(`check_declared`) need declared bounds."""
_LATER: Final = {"least_rows", "least_parties", "answer_after", "about"}  # not written where unset: digests stay
_LONGEST_WAIT: Final = 3600.0
"""Most seconds of `answer_after`: a server proposes terms to sites (`secure_mod`), whose processes wait so long."""
_MOST_CLIENTS: Final = 2**20
"""Terms take memory in proportion to their clients, and a server proposes them to sites (`secure_mod`)."""


@dataclass(frozen=True)
class SumTerms:
    """The terms that all parties agree on before they sum; public, and the same bytes at every party.

    Attributes:
        tensors: the tensors that are summed.
        clients: N, the number of clients, at most 2^20; their numbers are 0 to N - 1.
        cohort: S, the number of clients planned for one round.
        defense: how the sum is made.
        metrics: by name, the largest absolute value of one client's metric; their sums are part of the result.
        largest_weight: largest weight of one client (its number of rows), where updates are weighted; `like` rounds it
            up to a power of two.
        weighted: whether updates are weighted; never under noise, whose size must not depend on a weight.
        base: whether every round begins with a model that all parties hold, its base (`SumServer.open(base=...)`,
            `SumClient.receive(..., base=...)`): clients that were given different models are then never summed.
        differences: whether the update minus the base is summed; the mean is then added to the base.
        local: shell patterns of tensors that stay with their client, such as `*running_mean`.
        rounds: rounds at most; clients refuse further ones. `None` for any number.
        epsilon: privacy budget, at the delta of the defence's noise: server and clients stop before a round would
            exceed it. `None` for no limit.
        max_void: attempts at one sum. An attempt is void if too few clients reply, or if one of them sat out because
            its update was beyond a bound or not finite.
        least_rows: fewest rows of a party, by its tensor `count` and every entry of its tensors `counts`, `X.count` and
            `X.counts`, X a name; one with fewer sits out. `None` for any.
        least_parties: fewest parties of a result. `None` for any.
        answer_after: seconds, up to an hour, after which all clients answer a request for their contribution, counted
            from its arrival, so that the time which an update takes, or fails after, does not show; more than the
            slowest client takes. `None` answers at once. Set it by `dataclasses.replace(terms, answer_after=30.0)`.
        about: what is summed, in a text that all parties agree on, such as a statistic's settings. `None` for no text.

    Raises:
        ConfigError: a field of another type or outside its domain, or fields that do not fit together.
        PlanError: the defence cannot keep its promise for these tensors.
    """

    tensors: tuple[SummedTensor, ...]
    clients: int
    cohort: int
    defense: Defense
    metrics: tuple[tuple[str, float], ...] = ()
    largest_weight: float = 1.0
    weighted: bool = False
    base: bool = True
    differences: bool = False
    local: tuple[str, ...] = ()
    rounds: int | None = None
    epsilon: float | None = None
    max_void: int = MAX_VOID
    least_rows: int | None = None
    least_parties: int | None = None
    answer_after: float | None = None
    about: str | None = None

    def __post_init__(self) -> None:
        if not self.tensors:
            raise ConfigError("terms need at least one tensor; `local` keeps all of them with the clients")
        self._check_fields()
        object.__setattr__(self, "defense", with_plain_numbers(self.defense))
        check_minima(self)
        if self.differences and not self.base:
            raise ConfigError("differences are taken from a base; leave base=True")
        self.budget()  # raises ConfigError now, and not when the server starts
        check_cohort(self.defense, self.cohort, self.clients)
        check_alike(self.defense, beside=self.weighted or bool(self.metrics))
        if changes_updates(self.defense):
            self._check_alone()
        self.plan  # noqa: B018 - raises PlanError now, and not at the first message

    def _check_fields(self) -> None:
        """Raise `ConfigError` for a field of another type or outside its domain, as a file edited by hand may hold."""
        for kind, names in ((bool, ("weighted", "base", "differences")), (tuple, ("tensors", "metrics", "local"))):
            for name in names:
                check_type(name, getattr(self, name), kind)
        check_integer("clients", self.clients, 1, _MOST_CLIENTS)
        check_integer("cohort", self.cohort, 1, self.clients, note="(the number of clients)")
        check_integer("max_void", self.max_void, 1)
        check_positive("largest_weight", self.largest_weight)
        if self.rounds is not None:
            check_integer("rounds", self.rounds, 0, note="or None")
        if self.epsilon is not None:
            check_positive("epsilon", self.epsilon)
        if self.answer_after is not None:
            check_number("answer_after", self.answer_after, positive=True, most=_LONGEST_WAIT)
        if self.about is not None:
            check_type("about", self.about, str)
        for pattern in self.local:
            check_type("a pattern in `local`", pattern, str)
        for name, bound in self.metrics:
            check_type("a metric's name", name, str)
            check_positive(f"the bound of metric {name!r}", bound)
        as_plain(self, int, "clients", "cohort", "max_void", "rounds")
        as_plain(self, float, "largest_weight", "epsilon", "answer_after")

    def _check_alone(self) -> None:
        """Raise `ConfigError` where integers travel in an update that the defence changes."""
        if integers := [tensor.name for tensor in self.tensors if tensor.integer]:
            raise ConfigError(
                f"{self.defense.name} changes the whole update, and {integers[0]!r} holds integers; keep such tensors "
                f"with the clients: local=({integers[0]!r}, ...){BATCH_NORM}"
            )
        if variances := [tensor.name for tensor in self.tensors if tensor.name.endswith("running_var")]:
            raise ConfigError(
                f"{self.defense.name} changes the whole update, and may make the variance {variances[0]!r} negative"
                f"{BATCH_NORM}"
            )

    @classmethod
    def like(
        cls,
        example: Mapping[str, Any],
        *,
        clients: int,
        defense: Link | None,
        cohort: int | None = None,
        bounds: float | Mapping[str, float] | None = None,
        metrics: Mapping[str, float] | Iterable[str] = (),
        largest_weight: float | None = None,
        base: bool = True,
        differences: bool | None = None,
        local: Sequence[str] = (),
        rounds: int | None = None,
        epsilon: float | None = None,
        ring: Ring = 64,
        pipelined: bool = True,
        max_void: int = MAX_VOID,
    ) -> Self:
        """Make terms for updates like an example, such as a `state_dict`; booleans are summed as numbers, 0 and 1.

        Args:
            example: arrays or tensors by name; only names, shapes and whether they hold integers are read.
            clients: number of clients.
            defense: how the sum is made; `None` in the clear, which has to be written out.
            cohort: clients planned for one round; all by default.
            bounds: largest absolute entry of one client's update, one number or by name (others keep the default,
                2^20). Never clipped: a client beyond it sits out, and the round is repeated with all bounds doubled,
                which they stay for the rest of the run: each doubling doubles the rounding error (`SumResult.error`).
                Sums in a ring of 32 bits or fewer, and under CKKS, are coarse: they need all bounds.
            metrics: names of the metrics, or names with the largest absolute value of one client's (default 2^20; to be
                declared under CKKS).
            largest_weight: largest weight of one client, such as its number of rows. Without it updates are not
                weighted, and clients refuse a `weight`. The rounding error of a mean grows with it over the mean weight
                (`SumResult.error`; the plan says it for weights 1).
            base: whether rounds begin with a model that all parties hold.
            differences: whether update minus base is summed; by default where the defence clips.
            local: patterns of tensors that stay with their client.
            rounds: rounds at most.
            epsilon: privacy budget.
            ring: width in bits of the sums: 64, or 32 for half the bytes. Integers and single numbers keep 64.
            pipelined: under secure aggregation, let each round agree the keys of the next, which then takes two
                stages instead of four (with identities three instead of five).
            max_void: attempts at one sum.

        Raises:
            ConfigError: parameters that do not fit together.
            DataError: a tensor that holds no real numbers.
            PlanError: the defence cannot keep its promise for these tensors.
        """
        if isinstance(local, str) or isinstance(metrics, str):
            raise ConfigError("local and metrics are lists of texts, such as local=['*running_mean']; got one text")
        if largest_weight is not None:
            check_number("largest_weight", largest_weight, positive=True, most=2.0**1023)
        if not isinstance(example, Mapping):
            raise ConfigError(
                "the example must hold arrays or tensors by name, such as net.state_dict(); got "
                f"{type(example).__name__}"
            )
        chosen = pipelined_by(as_defense(defense)) if pipelined else as_defense(defense)
        arrays = {name: real_array(value, repr(name)) for name, value in example.items() if not is_local(name, local)}
        declared = (
            dict(bounds)
            if isinstance(bounds, Mapping)
            else dict.fromkeys(arrays, _LARGEST_ENTRY if bounds is None else bounds)
        )
        if unknown := sorted(set(declared) - set(arrays)):
            raise ConfigError(f"bounds name {unknown}, which are no summed tensors; these are {sorted(arrays)}")
        tensors = tuple(
            SummedTensor(
                name, value.shape, declared.get(name, _LARGEST_ENTRY), value.dtype.kind in "iu",
                64 if value.dtype.kind in "biu" or value.shape == () else ring,
            )
            for name, value in arrays.items()
        )  # fmt: skip
        sums = metrics if isinstance(metrics, Mapping) else dict.fromkeys(metrics, _LARGEST_ENTRY)
        terms = cls(
            tensors, clients, clients if cohort is None else cohort, chosen,
            tuple((name, float(bound)) for name, bound in sorted(sums.items())),
            1.0 if largest_weight is None else power_of_two(largest_weight), largest_weight is not None, base,
            (clips(chosen) and base) if differences is None else differences, tuple(local), rounds, epsilon, max_void,
        )  # fmt: skip
        undeclared = [] if isinstance(metrics, Mapping) else [f"{METRIC}{name}" for name in sums]
        if bounds is None or isinstance(bounds, Mapping):
            undeclared += [f"{UPDATE}{name}" for name in arrays if name not in (bounds or {})]
        check_declared(terms.plan, undeclared)
        return terms

    @cached_property
    def core(self) -> SumFacts:
        """The terms as the message layer reads them: the tensors of every message, and which sums a client lets out."""
        specs = [TensorSpec(f"{UPDATE}{t.name}", t.shape, t.bound, t.ring, t.sensitivity) for t in self.tensors]
        specs += [TensorSpec(f"{METRIC}{name}", (), bound, 64) for name, bound in self.metrics]
        specs += [TensorSpec(WEIGHT, (), 1.0, 64)] if self.weighted else []
        check_sampling(self.defense, self.cohort, self.clients)
        told = broadcast_of(None, 0)  # of any round: its digest has the same shape and type
        layouts, dtypes = {TRAIN: Layout(tuple(specs))}, {name: value.dtype for name, value in told.items()}
        schema = SumSchema(layouts, Layout.of(told), dtypes, self.clients, self.cohort)
        allowed = ExchangeSchedule(self.rounds, max_void=self.max_void)
        return SumFacts(defense=self.defense, schema=schema, exchanges=allowed, rule=rule_of(self))

    @cached_property
    def plan(self) -> Plan:
        """The defence's plan for one round: tensors with their errors, stages, bytes, threshold, assumptions."""
        plan = self.defense.plan(self.core.schema.layouts[TRAIN], self.cohort)
        return noted(plan, self.largest_weight if self.weighted else None).assume(*notes(self))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all of these terms, 32 bytes; it stands in every message.

        The defence enters by its `repr`, which every defence has; `to_bytes` refuses some links of the caller's own,
        and terms with those are made in code at every party. A `repr` holds public parameters only, no private keys, so
        that it is the same at every party and after `from_bytes`.
        """
        text = json.dumps([_FORMAT, self._facts(), repr(self.defense)], sort_keys=True)
        return hashlib.sha256(text.encode()).digest()

    @property
    def most_bytes(self) -> int:
        """Bytes of the longest message; parties refuse longer ones unread, and a transport need not carry them."""
        return LONGEST + max(self.core.limits.request, self.core.limits.reply)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the summed tensors, by name."""
        return {tensor.name: tensor.shape for tensor in self.tensors}

    def to_bytes(self) -> bytes:
        """Return these terms as JSON, public, for a file or a message to the other parties. Inverse: `from_bytes`.

        Raises:
            ConfigError: a link of the defence cannot be written.
        """
        facts = self._facts() | {"defense": defense_to_json(self.defense)}
        return json.dumps({"format": _FORMAT, "terms": facts}, indent=1).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read terms that `to_bytes` wrote.

        Raises:
            DataError: these bytes are no terms, or of another format.
            ConfigError, PlanError: as the terms themselves.
        """
        try:
            content = json.loads(data)
            if content["format"] != _FORMAT:
                raise DataError(f"terms of format {content['format']}, and this release reads {_FORMAT}")
            facts = dict(content["terms"])
            facts["tensors"] = tuple(SummedTensor(**with_tuples(item)) for item in facts["tensors"])
            facts["defense"] = defense_from_json(facts["defense"])
            return cls(**with_tuples(facts))
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            if isinstance(error, ConfigError | DataError):
                raise
            raise DataError(f"these bytes are no terms of a sum: {error!r}") from error

    def _facts(self) -> dict[str, Any]:
        """Return all fields but the defence, as JSON values."""
        facts = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "defense"}
        facts = {name: value for name, value in facts.items() if value is not None or name not in _LATER}
        return facts | {"tensors": [asdict(tensor) for tensor in self.tensors]}

    def for_party(self, party: PartyId, identity: bytes | None) -> Defense:
        """Return the defence as one party uses it: with its private identity, if it has one.

        Raises:
            ConfigError: an identity without public identities in the terms, none where they are, or one that is not
                that of the party.
        """
        known = identities_in(self.defense.aggregation)
        if known is None:
            if identity is not None:
                raise ConfigError(
                    "an identity is given, and these terms hold no public identities; make them with "
                    "secure_aggregation(identities=Identities({0: ..., 1: ...}))"
                )
            return self.defense
        if identity is None:
            if party in known.own:
                return self.defense
            raise ConfigError(f"these terms pin identities; give client {party} its private identity (identity=...)")
        mine = replace(known, own={party: identity})
        return with_identities(self.defense, mine)

    def budget(self) -> Budget | None:
        """Return the server's privacy budget; `None` without a limit on epsilon.

        Raises:
            ConfigError: epsilon is limited, and the defence adds no noise, or none that is accounted for.
        """
        if self.epsilon is None:
            return None
        for transform in self.defense.transforms:
            if isinstance(transform, CentralGaussian):
                return transform.budget(self.epsilon)
            if isinstance(transform, DistributedNoise):
                return transform.budget(self.epsilon, self.plan)
        adds = "noise that is not accounted for, as gaussian(...) and skellam(...) are" if self.plan.noised else "none"
        raise ConfigError(f"epsilon={self.epsilon:g} limits noise, and {self.defense.name} adds {adds}")

    def epsilon_after(self, exchanges: int) -> float:
        """Compute epsilon of this number of exchanges (attempts at a sum), at the delta of the defence's noise.

        Infinite without noise, 0 before any exchange.

        Raises:
            ConfigError: the defence adds noise that is not accounted for.
        """
        return epsilon_after(self.defense, self.plan, exchanges)


def check_terms(terms: object) -> None:
    """Raise `ConfigError` for terms that are no `SumTerms`, such as a file's bytes."""
    if not isinstance(terms, SumTerms):
        raise ConfigError(
            f"terms must be SumTerms, not {type(terms).__name__}; read bytes by SumTerms.from_bytes(data)"
        )
