"""Read off a change of model state which rows of its lookup tables the data look up: which categories occur.

A row of a table that no data look up has no gradient: it moves by weight decay and the like, as it does where the
attacker runs the local step on data without it (`occurring_tokens`). So a row that moves otherwise belongs to a
category that occurs, at the client or, in a sum, at any client. `training_seed_run` makes one `TableReader` for each
message, so that the runs of the step which it compares with serve all tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np
import torch

from securefed._auditing.training.attack_inputs import AttackInputs
from securefed._auditing.training.lookup_tables import LookupTable, with_parity
from securefed._tensors import Array
from securefed.attacks._base import Reconstruction
from securefed.attacks._text.token_occurrence import EmbeddingReference, occurring_tokens
from securefed.errors import SecureFedError, TranscriptError

_PARITIES: Final = (0, 1, 0)
"""Runs of the step to compare with: on even categories alone, on odd ones, and on even ones again. Every category is
absent from one run at least, and the odd ones from two, which must agree."""


class TableReader:
    """Reads the tables of one message.

    Args:
        inputs: of the attack; the runs of the step to compare with are made as for its message.
        tables: the tables of the model.
    """

    def __init__(self, inputs: AttackInputs, tables: Sequence[LookupTable]) -> None:
        self.inputs, self.tables = inputs, tables

    def occurring(self, table: LookupTable, inputs: AttackInputs) -> list[Reconstruction]:
        """Return (size,) 1 for the rows of a table that the data behind a message look up, 0 for others.

        Without a step to run, all rows that moved count.

        Args:
            table: one of the tables.
            inputs: the same as of the reader, with its message or another.

        Raises:
            TranscriptError: the table is not trained or not in the message, its rows move by the data also where they
                are not looked up, or the step looks nothing up in the model that it is given.
        """
        name = table.name
        if name not in inputs.training.parameters:
            raise TranscriptError(f"the table {table.called!r} is not trained, so that its rows tell of no category")
        if name not in inputs.observed.change:
            raise TranscriptError(f"the messages lack the table {table.called!r}")
        state = inputs.observed.state[name]
        try:
            found = occurring_tokens(
                state.double().numpy(),
                inputs.observed.change[name],
                self._references(table),
                float(torch.finfo(state.dtype).eps),
            )
        except SecureFedError as refusal:
            raise TranscriptError(f"the table {table.called!r} could not be read: {refusal}") from refusal
        return [Reconstruction("categories", found, diagnostics={"table": name})]

    def _references(self, table: LookupTable) -> list[EmbeddingReference]:
        """Return the runs of the step on other rows of a table; none where there is no step to run."""
        out = []
        for parity, called, change in self._runs:
            if table.name not in called:
                raise TranscriptError("the step looks nothing up in the model that it is given")
            absent = np.arange(table.size) % 2 != parity
            if table.padding is not None:
                absent[table.padding] = True  # it is never trained
            out.append(EmbeddingReference(change[table.name], absent))
        return out

    @cached_property
    def _runs(self) -> list[tuple[int, set[str], dict[str, Array]]]:
        """By run: the parity of what was looked up, the tables that were used, and the change."""
        runs = []
        for number, parity in enumerate(_PARITIES if self.inputs.facts is not None else ()):
            rows = self.inputs.draw(self.inputs.rng(80 + number), self.inputs.count)  # 80, 81, 82: streams of their own
            called = set[str]()
            training = with_parity(self.inputs.training, parity, called)
            runs.append((parity, called, replace(self.inputs, training=training).simulate(rows, 80 + number)))
        return runs
