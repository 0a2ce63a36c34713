"""Let every attack loose on the change of model state that one view of a torch loop shows, and score it.

A run is one round of the loop and one target, the client attacked. `TrainingSubject` makes a `TrainingSeedRun` for each
run and view. In the view `server` the change is the target's; in the view `sum only` it is the mean of all clients', as
secure aggregation leaves it. There two are made: one for the target's secrets, and one without a target
(`secrets.target` is `None`), for the rows of all clients together. These secrets are attacked:

    rows                the inputs x, by closed forms and searches; of text, token sequences, by checking whether the
                        inputs that they cause at a layer lie in the span of the layer's gradient
    labels              how many rows each class has, from the last layer or by regression on simulated clients
    batch statistics    means and variances at layers of batch normalisation
    tokens              which tokens occur, at the client or at any of all together
    categories          which rows of each lookup table occur: the categories of a column, at the client or at any
    membership          which of some candidate records are among the target's rows

The null, which measures chance, is the same attack on the change of another client, or on the sum with another client's
change in place of the target's; for the rows of all clients together, on a sum of clients simulated from rows that none
of them has. A search for rows makes as many evaluations there. Without such rows, or without a step, chance counts as
the guess. For membership the null is the same scores dealt out at random.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

import numpy as np
import torch

from securefed._auditing.engine.clear_runs import DEFENSES, SHOWN
from securefed._auditing.engine.runner import AttackedView
from securefed._auditing.engine.seed_result import Place, SeedResult
from securefed._auditing.training.attack_inputs import AttackInputs, TooLittleTime
from securefed._auditing.training.local_training import TrainedRows
from securefed._auditing.training.membership_scores import (
    SCORED,
    Records,
    alike_pairs,
    gradient_alignments,
    loss_drops,
    shadow_ratios,
    without_rows,
)
from securefed._auditing.training.reading_attacks import learn_labels, read_labels, read_statistics
from securefed._auditing.training.row_attack import ReadRows, recover_rows
from securefed._auditing.training.table_attacks import TableReader
from securefed._auditing.training.text_attacks import read_tokens, text_rows
from securefed._auditing.training.training_secrets import TrainingSecrets, labels_of
from securefed._tensors import Array
from securefed.attacks._base import Reconstruction
from securefed.errors import SecureFedError, TranscriptError

# Names of the attacks in the report.
STATISTICS, LABELS, REGRESSION = "training/batch statistics", "training/last layer", "training/label regression"
TOKENS, SPANS = "text/tokens", "text/spans"
TABLES: Final = "tables"
"""Begins the name of an attack on a lookup table, whose own name follows."""
ROWS: Final = "training/rows"
DROP, ALIGNMENT, SHADOW = "membership/loss drop", "membership/gradient alignment", "membership/shadow"
Attack = Callable[[AttackInputs], list[Reconstruction]]
"""From the observed change and the public facts to estimates; raises `SecureFedError` where it does not apply."""
_ONLY_POOLED_LABELS: Final = (
    "the most that a sum tells of labels are the counts of all its clients together, which are the guess: of one "
    "client they tell nothing more. The labels of people whom a rare category names were not attacked"
)
_SEARCH_SHARE: Final = 0.5
"""Share of the time that a run has left, for the search for rows and that of its null together: the search gets half of
it, a quarter of the time left, and the null as many evaluations, which take about as long. The rest is for membership,
which simulates clients."""


@dataclass
class TrainingSeedRun:
    """Attacks on one view of one run.

    Attributes:
        name: the name of the audited training.
        inputs: the inputs of the attacks: the observed change, the model and step, and the rows that the attacker
            knows.
        secrets: the secrets of the target, and how estimates of them are scored.
        population: rows that no client has; `None` where the other clients' rows stand in for them.
        result: the result of the seed; attempts, and attacks that did not apply, are recorded in it.
        image_shape: (height, width) of rows that are pictures; `None` otherwise.
    """

    name: str
    inputs: AttackInputs
    secrets: TrainingSecrets
    population: TrainedRows | None
    result: SeedResult
    image_shape: tuple[int, int] | None

    @cached_property
    def view(self) -> AttackedView[AttackInputs]:
        """What the attacks read, and where their attempts go."""
        view = self.inputs.observed.view
        place = Place(self.name, DEFENSES[view], view, self.inputs.seed, self.secrets.target)
        shown = SHOWN if self.inputs.seed == 0 and not self.secrets.text else ()
        return AttackedView(
            place, self.inputs, self.secrets.judge, self.result, [self._null], shown=shown, image_shape=self.image_shape
        )

    @property
    def asked(self) -> list[float]:
        """Seconds of the audit that would have given time to the attacks that had too little."""
        refused = [one for one in self.view.refused.values() if isinstance(one, TooLittleTime)]
        return [one.seconds for one in refused if one.seconds is not None]

    def attack(self) -> None:
        """Run every attack; what does not apply is noted with its reason."""
        if self.secrets.target is not None:
            self._read()
        self._occurrences()
        self._rows()
        if self.secrets.target is not None:
            self._membership()

    def _read(self) -> None:
        """Read batch statistics and counts of labels, as far as they are secrets here (`TrainingSecrets.has`).

        Called with a target only: names of attacks then need no "pooled" before them (`SecretData.named`).
        """
        secrets = self.secrets
        if secrets.has("statistics"):
            self.view.attack(STATISTICS, read_statistics)
        if secrets.has("labels") and len(self.inputs.rows) > 1:
            # The attacker is given the counts of all clients together, which makes the estimate the guess.
            counts = secrets.label_counts(self.inputs.classes)[1]
            pooled = Reconstruction("labels", counts, diagnostics={"bound": _ONLY_POOLED_LABELS})
            self.view.attack(LABELS, lambda _: [pooled])
        elif secrets.has("labels"):
            self.view.attack(LABELS, read_labels)
            try:
                learned = learn_labels(self.inputs)
            except SecureFedError as refusal:
                self.view.leave_out(REGRESSION, refusal)
            else:
                self.view.attack(REGRESSION, learned)
        elif (y := self.inputs.prior.y).ndim > 1 and not y.is_floating_point():
            self.view.leave_out(LABELS, "rows have several labels each, and counts are of one label a row")

    def _occurrences(self) -> None:
        """Read which tokens, and which rows of every lookup table, occur: at the target, or at any client."""
        if self.secrets.has("tokens"):
            self.view.attack(TOKENS, read_tokens)
        reader = TableReader(self.inputs, self.secrets.held.tables)
        for table in reader.tables:
            if self.secrets.has("categories", table.name):
                self.view.attack(f"{TABLES}/{table.called}", partial(reader.occurring, table))

    def _null(self) -> AttackInputs | None:
        """Return the inputs with a change that says nothing of the secrets; `None` without one."""
        change = self.inputs.observed.null
        if self.secrets.target is None:
            # with one client's change exchanged, a sum would still tell of the others' rows, which are secrets here too
            unknown = self.population is None or self.inputs.facts is None
            change = None if unknown else self._of_population
        return None if change is None else self.inputs.on(change)

    @cached_property
    def _of_population(self) -> Mapping[str, Array]:
        """The change of clients that are simulated on rows that none of them has."""
        assert self.population is not None
        others = replace(self.inputs, prior=self.population)
        return others.simulate(others.draw(others.rng(5), others.count), 5)

    def _rows(self) -> None:
        """Recover rows; of a sum those of all clients together, since no search tells which rows are the target's."""
        # all rows behind the change are secrets: one client is behind it, or all of a sum are the target
        whole = len(self.inputs.rows) == 1 or self.secrets.target is None
        if not whole:
            return
        if self.secrets.text:
            self.view.attack(SPANS, text_rows)
            return
        found: list[ReadRows] = []

        # The first call is the attack, the second its null. The null must search as much, since a search brings rows
        # nearer to all rows of the kind even where the message is of another client. So it is given the evaluations of
        # each start that the first call could afford, and `recover_rows` ignores the seconds where these are given.
        # 0 means that a closed form gave the rows: then the null is that closed form alone.
        def attack(inputs: AttackInputs) -> list[Reconstruction]:
            allowed = found[0].evaluations if found else None
            rows = recover_rows(inputs, _SEARCH_SHARE / 2 * self.inputs.budget.remaining, evaluations=allowed)
            found.append(rows)
            return [_reconstruction(rows)]

        self.view.attack(ROWS, attack)

    def _membership(self) -> None:
        """Score members and others by every score; their null permutes the scores."""
        records = self._records()
        if isinstance(records, str):
            for name in (DROP, ALIGNMENT, SHADOW):
                self.view.leave_out(name, records)
            return
        members = self.inputs.observed.members
        # rows of the members stand one after the other; the number of rows before the target's
        first = sum(self.inputs.rows[: members.index(self.inputs.observed.target)])
        scores: tuple[tuple[str, Callable[[], Array]], ...] = (
            (DROP, lambda: loss_drops(self.inputs, records.all)),
            (ALIGNMENT, lambda: gradient_alignments(self.inputs, records.all)),
            (SHADOW, lambda: shadow_ratios(self.inputs, records, first)),
        )
        for name, score in scores:
            # `rng(n)` is the stream of random draws number n, used here alone (see `row_attack`); so is 6 in `_records`
            self.view.score(name, "membership", partial(_split, score, len(records.inside)), self.inputs.rng(4))

    def _records(self) -> Records | str:
        """Choose members and as many rows that no member has; a sentence where there are none."""
        rng, own = self.inputs.rng(6), self.secrets.clients[self.inputs.observed.target]
        places = rng.permutation(len(own))[: SCORED // 2]
        absent = self.population
        if absent is None:
            if len(self.inputs.rows) > 1:
                return "every client's rows are in the sum; give `population`, rows that no client has"
            others = [rows for k, rows in enumerate(self.secrets.clients) if k != self.inputs.observed.target]
            absent = TrainedRows.joined(others)
        members = [self.secrets.clients[client] for client in self.inputs.observed.members]
        absent = without_rows(absent, TrainedRows.joined(members))
        inside, outside = alike_pairs(labels_of(own), labels_of(absent), places, rng.permutation(len(absent)))
        if not len(inside):
            return "no row that no member has is of a member's class; give `population` with rows of every class"
        return Records(own.part(torch.as_tensor(inside)), inside, absent.part(torch.as_tensor(outside)))


def _split(score: Callable[[], Array], members: int) -> tuple[Array, Array]:
    """Return the scores of members and of others; refuse those of an attack that looked at nothing a record changes."""
    scored = score()
    if not np.ptp(scored):
        raise TranscriptError("it gives all records the same score, members and others")
    inside, outside = np.split(scored, [members])
    return inside, outside


def _reconstruction(found: ReadRows) -> Reconstruction:
    diagnostics = {"stage": found.stage, "explained": found.explained}
    return Reconstruction("samples", found.rows, residual=found.residual, diagnostics=diagnostics)
