"""Derive names, shapes and types of a federated algorithm's messages from public facts alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from securefed._public import Public
from securefed._runtime.exchange_header import EVALUATE, TRAIN
from securefed._runtime.sum_facts import SumSchema
from securefed._tensors import Layout, Tensors
from securefed.algorithms._base import Algorithm
from securefed.algorithms._capabilities import SupportsBroadcastCheck, supports
from securefed.algorithms._validation import check_object, contribution_layout, evaluation_layout, first_broadcast


@dataclass(frozen=True)
class MessageSchema(SumSchema):
    """The tensors of every message of an algorithm's run.

    Attributes:
        algorithm: the method with its hyper-parameters.
        public: the public facts.
    """

    algorithm: Algorithm[Any, Any]
    public: Public

    @classmethod
    def of(cls, algorithm: Algorithm[Any, Any], public: Public) -> MessageSchema:
        """Derive the tensors of every message.

        Raises:
            ConfigError: the object is no algorithm, or its parameters do not fit the data.
        """
        check_object(algorithm)
        layouts = {TRAIN: contribution_layout(algorithm, public), EVALUATE: evaluation_layout(algorithm, public)}
        example = first_broadcast(algorithm, public)
        dtypes = {name: value.dtype for name, value in example.items()}
        return cls(layouts, Layout.of(example), dtypes, public.clients, public.cohort, algorithm, public)

    @property
    def needs_outcome(self) -> bool:
        """True if the algorithm's clients need the broadcast that followed from the sum that counted them."""
        return self.algorithm.needs_outcome

    def _check_values(self, broadcast: Tensors) -> None:
        """Refuse what the algorithm rules out (`SupportsBroadcastCheck`)."""
        if supports(self.algorithm, SupportsBroadcastCheck):
            self.algorithm.check_broadcast(broadcast, self.public)
