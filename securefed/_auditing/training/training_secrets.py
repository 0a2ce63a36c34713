"""The data that an audit of a torch loop tries to recover, what could be guessed of them, and the score.

`training_subject` makes a `TrainingSecrets` for each run and target; estimates of attacks are scored by `judge`. Rows
are scored as in the audit of a user's own algorithm (`client_secrets`). The other secrets are one client's:

    labels       its number of rows of each class; the guess is all clients' counts, scaled to its number of rows
    statistics   the mean and the variance of each channel that every layer of batch normalisation computes over the
                 client's rows, in the network that the client received. Each is stated relative to the same statistic
                 of known rows (`standardised`): the rows that the attacker has, which are those of all other clients,
                 or a population that the user gives. The guess is that of all clients' rows together.
    tokens       which tokens occur in the client's rows and leave a trace (`TokenInputs`); the guess is the share of
                 the clients that have the token
    categories   which rows of a lookup table, such as the categories of a column, the client's rows look up; the guess
                 is the share of the clients that do

Tokens and categories are secrets of all clients together too: which of them occur at any client. The guess is then
their chance to occur among as many rows of the population, or the number of them that occur, where there is none.
Rows of numbers and categories are scored as vectors (`RowEncoding`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor, nn

from securefed._auditing.engine.results import Secret
from securefed._auditing.engine.seed_result import NEGLIGIBLE, Judgement, judge_estimate
from securefed._auditing.own.client_secrets import SecretData
from securefed._auditing.training.attacked_network import batch_norms
from securefed._auditing.training.local_training import TrainedRows
from securefed._auditing.training.lookup_tables import NONE_HELD, HeldCategories
from securefed._auditing.training.row_encoding import RowEncoding
from securefed._auditing.training.token_inputs import TokenInputs
from securefed._public import Public
from securefed._tensors import Array
from securefed.attacks._base import Reconstruction
from securefed.attacks.scores import match, relative_error
from securefed.datasets._base import Dataset

RECOVERED: Final = 0.1
"""Largest distance of a recovered row from the true one, as a share of the true one's distance from the mean row."""


@dataclass(frozen=True)
class TrainingSecrets:
    """The data of one client, or of all together, and the scores of estimates of them.

    Attributes:
        clients: all clients' rows.
        target: the client; `None` for all together.
        seed: the seed of the run.
        statistics: for each client (numbers,) its standardised statistics, and those of all rows last; empty arrays
            without layers of batch normalisation.
        text: the tokens in the rows; `None` where rows are no tokens.
        held: which rows of the model's lookup tables the clients' rows look up.
        population: rows that no client has; `None` where there are none.
    """

    clients: Sequence[TrainedRows]
    target: int | None
    seed: int
    statistics: Sequence[Array]
    text: TokenInputs | None
    held: HeldCategories = NONE_HELD
    population: TrainedRows | None = None

    @cached_property
    def encoding(self) -> RowEncoding | None:
        """The encoding of rows of numbers and categories; `None` for other rows."""
        if self.text is not None:
            return None
        return RowEncoding.of(self.held.tables, np.concatenate([rows.flat for rows in self.clients]))

    @cached_property
    def data(self) -> SecretData:
        """Rows and counts of labels."""
        if self.text is not None:
            flat = [self.text.traced(rows.x).numpy().astype(np.float64) for rows in self.clients]
        else:
            flat = [rows.flat if self.encoding is None else self.encoding.encode(rows.flat) for rows in self.clients]
        sets = [Dataset(x, labels_of(rows)) for x, rows in zip(flat, self.clients, strict=True)]
        return SecretData(sets, Public.of(sets), self.target, self.seed)

    @property
    def truth(self) -> Array:
        """(rows, features), the secret rows."""
        return self.data.rows

    def judge(self, estimate: Reconstruction) -> list[Judgement]:
        """Score an estimate beside the guess.

        Args:
            estimate: an estimate of rows, labels, statistics, tokens or categories; `estimate.secret` says which.
                Labels and statistics need a target.

        Returns:
            One score, in a list, as `SeedResult.record` takes it.
        """
        if estimate.secret == "samples" and self.text:
            return [self._exact_rows(estimate.value)]
        if estimate.secret == "samples" and self.encoding is not None:
            return [self._mixed_rows(estimate, self.encoding)]
        if estimate.secret in ("tokens", "categories"):
            truth, guess = self._occurrences(estimate.diagnostics.get("table"))
            return [self._judged(self.data.named(estimate.secret), estimate.value, truth, guess)]
        if estimate.secret not in ("statistics", "labels"):
            return self.data.judge(estimate)
        assert self.target is not None
        if estimate.secret == "labels":
            return [self._judged("labels", estimate.value, *self.label_counts(len(estimate.value)))]
        return [self._judged("statistics", estimate.value, self.statistics[self.target], self.statistics[-1])]

    def _judged(self, secret: Secret, value: Array, truth: Array, guess: Array) -> Judgement:
        return judge_estimate(secret, value, truth, guess, relative_error(guess, truth))

    def _mixed_rows(self, estimate: Reconstruction, encoding: RowEncoding) -> Judgement:
        """Score rows of numbers and categories; rows that were not found count as guessed."""
        value = encoding.encode(estimate.value) if np.isfinite(estimate.value).all() else estimate.value
        missing = max(len(self.truth) - len(value), 0)
        guessed = np.repeat(self.data.prior.mean(axis=0)[None], missing, axis=0)
        if np.isfinite(value).all():
            value = np.concatenate([value, guessed])
        [judged] = self.data.judge(replace(estimate, value=value))
        own = list(self.clients) if self.target is None else [self.clients[self.target]]
        return replace(
            judged,
            truth=np.concatenate([rows.flat for rows in own]),
            estimate=encoding.decode(judged.estimate),
            part=encoding.named(judged.part),
        )

    def _occurrences(self, table: str | None) -> tuple[Array, Array]:
        """Return which tokens, or which rows of a table, occur, and the guess.

        Args:
            table: name of the table; `None` for the tokens of text.

        Returns:
            Truth and guess, (size,) each, of the target or of all clients together.
        """
        each = [share > 0 for share in self._shares(table)]
        if self.target is not None:
            return each[self.target].astype(np.float64), np.mean(each, axis=0)
        pooled = np.any(each, axis=0).astype(np.float64)
        known = self._known_share(table)
        if known is None:
            return pooled, np.full(len(pooled), pooled.mean())
        return pooled, 1.0 - (1.0 - known) ** sum(len(rows) for rows in self.clients)

    def _shares(self, table: str | None) -> list[Array]:
        """Return for each client (size,) the share of its rows in which each token, or row of a table, occurs."""
        if table is not None:
            return [shares[table] for shares in self.held.clients]
        assert self.text is not None
        return [self.text.shares(rows.x) for rows in self.clients]

    def _known_share(self, table: str | None) -> Array | None:
        if self.population is None:
            return None
        if table is not None:
            return None if self.held.population is None else self.held.population[table]
        assert self.text is not None
        return self.text.shares(self.population.x)

    def label_counts(self, classes: int) -> tuple[Array, Array]:
        """Return (classes,) the target's counts of each label, and all clients' counts scaled to its number of rows.

        Every client must have labels, as it does where `has("labels")`.
        """
        labels = [y for rows in self.clients if (y := labels_of(rows)) is not None]
        assert self.target is not None and len(labels) == len(self.clients)
        counts = [np.bincount(y, minlength=classes).astype(np.float64) for y in labels]
        own = counts[self.target]
        return own, np.sum(counts, axis=0) * (own.sum() / np.sum(counts))

    def _exact_rows(self, found: Array) -> Judgement:
        """Score token sequences, -1 for no token: the error is the share of the secret ones that were not found."""
        known = {tuple(row) for row in np.asarray(found, np.int64).tolist()}
        share = np.mean([tuple(row) in known for row in self.truth.astype(np.int64).tolist()])
        secret: Secret = "samples" if self.target is not None else "pooled samples"
        # the guess finds none, hence the baseline 1; `estimate` serves pictures, of which tokens have none
        return Judgement(
            secret, error=1.0 - float(share), baseline=1.0, failed=False, truth=self.truth, estimate=self.truth
        )

    def recovered_share(self, found: Array) -> float:
        """Return the share of the secret rows that are recovered to `RECOVERED`."""
        if not len(found) or not np.isfinite(found).all():
            return 0.0
        if self.text:
            return 1.0 - self._exact_rows(found).error
        if self.encoding is not None:
            found = self.encoding.encode(found)
        off = np.linalg.norm(match(found, self.truth) - self.truth, axis=1)
        return float(np.mean(off <= RECOVERED * np.linalg.norm(self.truth - self.data.prior.mean(axis=0), axis=1)))

    def has(self, secret: Literal["labels", "statistics", "tokens", "categories"], table: str | None = None) -> bool:
        """Return whether there is such a secret; all clients together have no label counts and no statistics.

        Labels that are classes, tokens and categories are no secret where the guess already has no error. Statistics
        exist wherever the network has layers of batch normalisation.

        Args:
            secret: its name.
            table: name of the lookup table whose categories are meant.
        """
        if secret == "labels":
            return self.data.has_label_counts  # false without a target
        if secret == "statistics":
            return self.target is not None and bool(len(self.statistics) and len(self.statistics[-1]))
        if secret == "tokens" and not self.text:
            return False
        truth, guess = self._occurrences(table)
        return bool(truth.any()) and relative_error(guess, truth) > NEGLIGIBLE


def labels_of(rows: TrainedRows) -> Array | None:
    """Return targets that are one class a row, else `None`.

    Real numbers are two classes where all of them are 0 or 1, as the target of a single logit is; (rows, 1) of them
    are one a row too.
    """
    y = rows.y
    if y.is_floating_point():
        single = y.ndim == 1 or tuple(y.shape[1:]) == (1,)
        whole = single and bool(((y == 0) | (y == 1)).all())
    else:
        whole = y.ndim == 1 and bool((y >= 0).all())
    return np.asarray(y.reshape(-1).double().numpy().astype(np.int64)) if whole else None


def layer_statistics(module: nn.Module, modes: Mapping[str, bool], rows: Tensor) -> list[Array]:
    """Compute means and unbiased variances at every layer of batch normalisation, over all rows as one batch.

    Args:
        module: the module with the weights that a client received; it is copied.
        modes: the modes of its parts, as the step used them.
        rows: (rows, ...) inputs.

    Returns:
        For each layer two arrays (channels,): means, then variances.
    """
    module = deepcopy(module)
    layers = batch_norms(module, modes)
    for name, part in module.named_modules():
        part.training = name in layers
    for layer in layers.values():
        layer.momentum = 1.0  # the running statistics become those of the one batch
    with torch.no_grad():
        module(rows)
    found = [(layer.running_mean, layer.running_var) for layer in layers.values()]
    return [np.asarray(value.double().numpy()) for pair in found for value in pair if value is not None]


def standardised(parts: Sequence[Array], pooled: Sequence[Array]) -> Array:
    """Return statistics as one vector, each in units of the same statistic of known rows.

    With "pooled" for the statistics of all known rows as one batch, a mean becomes (mean - pooled mean) / pooled
    standard deviation + 1, and a variance becomes variance / pooled variance. So the pooled statistics themselves
    become ones, and errors relative to the vector's norm are defined.

    Args:
        parts: for each layer its means, then its variances, each (channels,).
        pooled: the same of known rows.

    Returns:
        (numbers,) in the order of `parts`; empty without layers.
    """
    out = []
    for place in range(0, len(pooled), 2):
        mean, variance = pooled[place], np.maximum(pooled[place + 1], 1e-12)
        out += [(parts[place] - mean) / np.sqrt(variance) + 1.0, parts[place + 1] / variance]
    return np.concatenate(out) if out else np.zeros(0)
