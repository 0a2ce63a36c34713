"""Derive names, shapes and types of every message's tensors from public facts alone.

Server and clients derive the schema from the same terms before a run. So the size of an upload tells the server nothing
about data, and a client can refuse a broadcast of another shape before its algorithm sees it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from securefed._messages import PartyId
from securefed._public import Public
from securefed._runtime.exchange_header import EVALUATE, TRAIN
from securefed._tensors import Layout, Tensors
from securefed.algorithms._base import Algorithm
from securefed.algorithms._capabilities import SupportsBroadcastCheck, supports
from securefed.algorithms._validation import check_object, contribution_layout, evaluation_layout, first_broadcast
from securefed.errors import DataError, MalformedError


@dataclass(frozen=True)
class MessageSchema:
    """The tensors of every message of a run, which all parties derive from public facts alone.

    Attributes:
        algorithm: the method with its hyper-parameters.
        public: the public facts.
        layouts: by kind of exchange, the tensors that a client uploads.
        broadcast: the tensors that the server sends.
        dtypes: types of the tensors that the server sends.
    """

    algorithm: Algorithm[Any, Any]
    public: Public
    layouts: Mapping[str, Layout]
    broadcast: Layout
    dtypes: Mapping[str, np.dtype[Any]]

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
        return cls(algorithm, public, layouts, Layout.of(example), dtypes)

    def check_broadcast(self, sender: PartyId, broadcast: Tensors) -> None:
        """Refuse a broadcast that no honest server sends, before the algorithm sees it.

        Args:
            sender: the party named in the error.
            broadcast: the tensors received.

        Raises:
            MalformedError: other names, shapes or types, entries that are not finite, or what the algorithm rules out
                (`SupportsBroadcastCheck`). The rules look at the broadcast alone.
        """
        try:
            self.broadcast.check(broadcast, where="broadcast")
            for name, value in broadcast.items():
                if value.dtype != self.dtypes[name]:
                    raise DataError(f"broadcast {name!r} is {value.dtype}, not {self.dtypes[name]}")
            if supports(self.algorithm, SupportsBroadcastCheck):
                self.algorithm.check_broadcast(broadcast, self.public)
        except (DataError, TypeError) as error:
            raise MalformedError(sender, str(error)) from error
