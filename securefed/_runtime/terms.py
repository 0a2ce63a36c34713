"""Terms of a run: what all parties agree on before it, and derive everything else from.

Server and clients make them alike from the same arguments: `Federation` for a simulation, `flower.serve` and
`flower.client_app` on each machine, `SumTerms` for sums of a training loop of the caller's own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from securefed._class_names import ClassName, numbered_apart, numbering
from securefed._hyperparameters import check_integer
from securefed._messages import ClientId
from securefed._public import Public
from securefed._runtime.client import AlgorithmFacts, ClientNode
from securefed._runtime.cohorts import check_no_noise, check_reveal, revealed_scalars
from securefed._runtime.exchange_header import EVALUATE, MAX_VOID, TRAIN, ExchangeSchedule
from securefed._runtime.privacy_checks import check_cohort_secrecy, check_evaluation, check_sampling, sampler_of
from securefed._runtime.sum_facts import SumSchema
from securefed._runtime.sum_memory import SumRule
from securefed._tensors import Layout, Tensors
from securefed.algorithms._base import Algorithm
from securefed.algorithms._capabilities import SupportsBroadcastCheck, supports
from securefed.algorithms._validation import check_object, contribution_layout, evaluation_layout, first_broadcast
from securefed.datasets._base import Dataset
from securefed.defenses._aggregation_facts import survivor_change_in
from securefed.defenses._base import Defense
from securefed.defenses._chain import Link, as_defense
from securefed.defenses._differential_privacy import FixedSizeSampling
from securefed.defenses._grouped_sums import Grouped, check_cohort
from securefed.errors import ConfigError, DataError


@dataclass(frozen=True, kw_only=True)
class Terms(AlgorithmFacts):
    """The facts of a sum, and the algorithm that computes its contributions; made and checked by `of`.

    Attributes:
        algorithm: the method with its hyper-parameters.
        public: the public facts.
        seed: seeds initial states, cohorts and mini-batches.
        reveals: whether clients send the server, in the clear, scalars that the algorithm selects clients by.
    """

    @classmethod
    def of(
        cls,
        algorithm: Algorithm[Any, Any],
        public: Public,
        defense: Link | None = None,
        *,
        seed: int = 0,
        reveal: bool | None = None,
        rounds: int | None = None,
        evaluate_every: int = 0,
        max_void: int = MAX_VOID,
        rule: SumRule | None = None,
    ) -> Terms:
        """Make terms, and check that they fit together.

        Args:
            algorithm: hyper-parameters of the method.
            public: declared facts about the data.
            defense: protects the contributions in messages; without one, contributions are summed in the clear.
            seed: seeds initial states, cohorts and mini-batches. Keys and noise never come from it.
            reveal: accept that clients reveal the scalars an algorithm selects by, outside the defence; by default only
                where nothing is hidden anyway.
            rounds: training rounds at most; `None` for any number.
            evaluate_every: rounds between two evaluations; 0 for none.
            max_void: most attempts at one sum; an attempt that gives no sum is repeated.
            rule: which sums clients let out beside earlier ones; by default that of sums with a broadcast, with the
                least block of the defence (`survivor_change`).

        Raises:
            ConfigError: parameters and data clash, no whole number as seed, scalars that the caller did not agree to
                reveal, or that no epsilon of the defence or the algorithm covers, or noise whose accountant assumes
                another draw of clients than the run makes.
        """
        check_integer("seed", seed, 0)
        layer = as_defense(defense)
        reveals = check_reveal(algorithm, layer, reveal)
        schema = schema_of(algorithm, public)
        check_sampling(layer, public.cohort, public.clients, chosen=bool(revealed_scalars(algorithm)))
        if isinstance(sampler_of(layer), FixedSizeSampling):  # the accountant counts on a secret draw
            check_cohort_secrecy(algorithm, public)
        check_grouped(layer, algorithm, public)
        terms = cls(
            algorithm=algorithm, defense=layer, public=public, seed=seed, schema=schema, reveals=reveals,
            exchanges=ExchangeSchedule(rounds, evaluate_every, max_void), rule=rule or rule_of(layer),
        )  # fmt: skip
        if reveals:
            check_no_noise(algorithm, terms.training)
        if evaluate_every:
            check_evaluation(terms.training, algorithm)
        return terms

    def node(self, client: ClientId, run: str, data: Dataset, **settings: Any) -> ClientNode:
        """Make the node of one client, enrolled with its data.

        Args:
            client: its id.
            run: identifier of the run.
            data: its rows.
            settings: as of `SumNode`.
        """
        return ClientNode(client, run, self, data, **settings)

    def check_rows(self, client: ClientId, data: Dataset) -> None:
        """Raise `DataError` unless a client's data are what the public facts declare of them."""
        public = self.public
        if not 0 <= client < public.clients:
            raise DataError(f"the terms are for clients 0 to {public.clients - 1}, and this one is {client}")
        declared = (public.rows[client], public.features)
        if data.x.shape != declared:
            raise DataError(f"client {client} has rows of shape {data.x.shape}, and {declared} are declared of it")
        if data.classes > public.classes:
            raise DataError(f"client {client} has labels of {data.classes} classes, and {public.classes} are declared")
        if data.classes:
            self._check_class_names(client, data.class_names)
        if (largest := float(np.abs(data.x).max(initial=0))) > public.feature_bound:
            raise DataError(
                f"client {client} has an entry of {largest:g}, beyond the declared {public.feature_bound:g}; scale its "
                "rows, or declare a larger range"
            )

    def _check_class_names(self, client: ClientId, names: tuple[ClassName, ...]) -> None:
        """Raise `DataError` unless a client numbers its classes as the public facts do.

        Rows without names, which the caller numbered, are accepted where the facts have none either.
        """
        agreed = self.public.class_names
        if names == agreed or (not agreed and not numbered_apart(names)):
            return
        if not agreed:
            raise DataError(
                f"client {client} numbers its classes {numbering(names)}, and other clients may number theirs "
                "differently, since the public facts name no classes: agree on one list of all classes, load the rows "
                "with it (load(..., classes=[...])), and declare it in the terms of all parties "
                "(Public(..., class_names=(...)))"
            )
        given = f"numbers its classes {numbering(names)}" if names else "has labels without the names of their classes"
        remedy = "" if names else f", or give Dataset(x, y, {agreed!r}) where its labels are numbered so"
        raise DataError(
            f"client {client} {given}, and the public facts say {numbering(agreed, None)}; load its rows with "
            f"load(..., classes={list(agreed)!r}){remedy}"
        )

    @property
    def digest(self) -> str:
        """Fingerprint of the terms: parties that agree on it derive the same plan for every exchange."""
        facts = (self.algorithm, self.defense, self.public, self.seed, self.reveals, self.exchanges)
        return hashlib.sha256("\0".join(("securefed terms 2", *map(repr, facts))).encode()).hexdigest()


def schema_of(algorithm: Algorithm[Any, Any], public: Public) -> SumSchema:
    """Derive the tensors of every message of an algorithm's run from public facts alone.

    Raises:
        ConfigError: the object is no algorithm, or its parameters do not fit the data.
    """
    check_object(algorithm)
    layouts = {TRAIN: contribution_layout(algorithm, public), EVALUATE: evaluation_layout(algorithm, public)}
    example = first_broadcast(algorithm, public)
    dtypes = {name: value.dtype for name, value in example.items()}
    check = None
    if supports(algorithm, SupportsBroadcastCheck):
        check = partial(_check_broadcast, algorithm, public)
    return SumSchema(layouts, Layout.of(example), dtypes, public.clients, public.cohort, algorithm.needs_outcome, check)


def _check_broadcast(algorithm: SupportsBroadcastCheck, public: Public, broadcast: Tensors) -> None:
    """Call the algorithm's own check, by position: its parameters may have other names."""
    algorithm.check_broadcast(broadcast, public)


def rule_of(defense: Defense) -> SumRule:
    """Return the rule of sums with a broadcast: equal sources, and the least block that the defence asks for."""
    return SumRule(least_block=survivor_change_in(defense.aggregation))


def check_grouped(defense: Defense, algorithm: Algorithm[Any, Any], public: Public) -> None:
    """Raise `ConfigError` where sums made group by group do not fit the algorithm or the cohort.

    Args:
        defense: of the run.
        algorithm: refused under a robust mean where it declares `exact_sums`, or needs the outcome of a round as
            updates of duals do.
        public: numbers of clients, in all and planned for a sum.
    """
    grouped = defense.aggregation
    if not isinstance(grouped, Grouped):
        return
    if grouped.robust and (algorithm.exact_sums or algorithm.needs_outcome):
        raise ConfigError(
            f"{type(algorithm).__name__} keeps running sums or duals that follow from the exact sum of all survivors, "
            f"and {grouped} gives a robust mean in its place; take `secure_aggregation()` without groups, or "
            "an algorithm that begins anew from each sum, such as FedAvg(...)"
        )
    check_cohort(defense, public.cohort, public.clients)
