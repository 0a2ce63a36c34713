"""A Flower strategy whose server sees sums only: any strategy that works on the mean, behind a secure sum.

In Flower, the server's program (ServerApp) runs a strategy, which sends messages through a grid to SuperNodes; each
SuperNode belongs to one client and answers by its ClientApp. `SecureStrategy.start` gives the strategy another grid
(`SumGrid`), which takes the strategy's messages, runs a secure sum with the SuperNodes (`secure_mod` there), and
hands the strategy one reply: the weighted mean of all replies.

A phase is the training or the evaluation of a round. Each phase has one sum, with terms of its own (`SumTerms`), made
from its first messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Result, Strategy

from securefed._persistence.sealing import Seal
from securefed._tensors import Ring
from securefed.defenses._aggregation import Aggregation
from securefed.defenses._chain import Link, as_defense
from securefed.defenses._grouped_sums import Grouped
from securefed.errors import ConfigError
from securefed.flower._cohorts import check_most_nodes, samplings
from securefed.flower._outcome import SecureRound
from securefed.flower._sum_grid import SumGrid
from securefed.flower._sum_messages import EVALUATE, TRAIN, config_digest
from securefed.flower._wanted_terms import Metrics, WantedTerms, metric_shapes
from securefed.parties._terms_parts import weighs_alike

_MAX_VOID: Final = 3
"""Attempts at one sum. Each takes two exchanges or more, seconds each over Flower; at twice as many, a client that
always fails costs a round twice the time, and at one, a value out of range costs its round at once."""
_REFUSED: Final = {
    "FedMedian": "takes the median of single updates",
    "FedTrimmedAvg": "leaves out the largest and smallest entries of single updates",
    "Krum": "compares single updates with each other",
    "MultiKrum": "compares single updates with each other",
    "Bulyan": "compares single updates with each other",
    "QFedAvg": "weights each update by the loss that its own client reports",
    "FedXgbBagging": "collects the trees of single clients",
    "FedXgbCyclic": "passes one client's trees to the next",
    "DifferentialPrivacyServerSideFixedClipping": "clips single updates at the server; let the clients clip, with "
    "chain(clip(...), skellam(...), secure_aggregation()) as the defence",
    "DifferentialPrivacyServerSideAdaptiveClipping": "clips single updates at the server; let the clients clip, with "
    "chain(clip(...), skellam(...), secure_aggregation()) as the defence",
    "DifferentialPrivacyClientSideAdaptiveClipping": "counts the clients whose single updates were clipped; use "
    "chain(adaptive_clip(...), ...) as the defence",
}
"""Flower's strategies that need single replies, and what for."""
_OF_GROUPS: Final = {
    "FedMedian": "median", "FedTrimmedAvg": "trimmed_mean", "Krum": "krum", "MultiKrum": "multi_krum"
}  # fmt: skip
"""Of those, the ones that `grouped` takes of the groups' means, with the name of its `aggregator`."""


class SecureStrategy(Strategy):
    """Runs a Flower strategy so that its server sees sums of the clients' updates, and no single one.

        strategy = SecureStrategy(FedAvg(), secure_aggregation(), context.run_config, largest_weight=5000)  # ServerApp
        app = ClientApp(mods=[secure_mod])                                                                  # ClientApp

    The strategy itself stays as it is: it samples nodes, makes messages and gets one reply a phase, the weighted mean
    of the updates and of their metrics, all or those that are named. So strategies that work on the mean give the same
    model as without (FedAvg, FedProx, FedAvgM, FedAdam, FedYogi, FedAdagrad, client-side fixed clipping); those that
    need single replies are refused by name. A function that aggregates metrics also gets that one reply. One Flower run
    has one `SecureStrategy`, which may be started several times; clients refuse the messages of another.

    Args:
        strategy: Flower's strategy.
        defense: how the sum is made: `secure_aggregation()`, or a chain that also clips and adds noise.
        run_config: the config of the run, `context.run_config` of the ServerApp. SuperNodes whose apps were given
            another one refuse, since a server that varies a learning rate there could single one of them out.
        train_metrics: which metrics of `@app.train` are summed, beside the weight (the strategy's `weighted_by_key`).
            By default all numbers in a reply, single ones and lists, up to 256; a number that is not finite at some
            client, or beyond 2^20, comes back as NaN. Or names, `("train_loss",)`; lists by name with their lengths,
            `{"train_loss": 0, "per_class": 10}`, 0 for a single number: others stay with their client, and one that
            lacks one sits out.
        evaluate_metrics: the same for `@app.evaluate`; a strategy that evaluates at the clients needs at least one.
        clients: largest number of SuperNodes in the run; by default those that are connected when it begins.
        bounds: largest absolute entry of one client's updated model, one number or by name (default 2^20).
        largest_weight: largest weight of one client, its number of examples, in training and evaluation. Needed where
            the defence does not clip: updates are weighted, and their weights' rounding is in proportion to it. A
            client with more examples sits out; a site can state its own number in its rules (`SitePolicy`), and then
            refuses terms that allow fewer, by name.
        local: patterns of arrays that stay with their client, such as `*running_mean`; the server keeps its own.
        rounds: rounds at most; clients refuse further ones.
        epsilon: privacy budget of a defence that adds noise.
        ring: width in bits of the sums: 64, or 32 for half the bytes where bounds are declared.
        max_void: attempts at one sum.
        answer_after: seconds after which all clients answer a request for their update, so that the time that an app
            takes, or fails after, does not show; more than the slowest takes (`SumTerms.answer_after`).
        poll: seconds between two looks for replies.
        patience: seconds to wait for the replies of a stage in which clients do not train. The stage with the updates
            waits as long as `start(timeout=...)` says, and so does the first exchange until a first SuperNode answers.
        folder: where the state of the sums is kept, so that a ServerApp that is started again goes on counting
            exchanges and epsilon. The model is the caller's to keep (`evaluate_fn`). By default in memory.
        seal: encrypts the states in the folder, which hold the server's secrets of an open round. An anchor is a small
            file that remembers the newest version, so that an older copy is refused; each state file gets one of its
            own, `ANCHOR-FILENAME`, beside the seal's anchor.

    Attributes:
        history: what became of each phase so far: exchanges, SuperNodes in the sum, seconds, refusals.
        stopped: why the run ended before its last round; `None` if it did not.
        arrays: the newest model that the strategy sent, also where `start` raises; `None` before the first round.
        epsilon: the epsilon of all exchanges of training so far.
        checked: which SuperNodes checked the last sum of each phase (`verify=True`), in words.

    Raises:
        ConfigError: a strategy that needs single replies, an evaluation at the clients without metrics, a defence that
            weights updates without their largest weight (or one that does not, with it), or a config that is no
            mapping.
        PlanError: a phase that samples too few of `clients` SuperNodes for a sum.
    """

    def __init__(
        self,
        strategy: Strategy,
        defense: Link,
        run_config: Mapping[str, str | float] | None = None,
        *,
        train_metrics: Metrics = None,
        evaluate_metrics: Metrics = None,
        clients: int | None = None,
        bounds: float | Mapping[str, float] | None = None,
        largest_weight: float | None = None,
        local: Iterable[str] = (),
        rounds: int | None = None,
        epsilon: float | None = None,
        ring: Ring = 64,
        max_void: int = _MAX_VOID,
        answer_after: float | None = None,
        poll: float = 0.5,
        patience: float = 120.0,
        folder: Path | str | None = None,
        seal: Seal | None = None,
    ) -> None:
        inner = _checked(strategy, as_defense(defense).aggregation)
        if as_defense(defense).aggregation.beside:
            raise ConfigError(
                f"{as_defense(defense).name} needs a key holder beside the server, and a Flower strategy "
                "has no place for one; use secure_aggregation(), or serve and client_app with a key holder"
            )
        self.strategy = strategy
        alike = weighs_alike(as_defense(defense))
        metrics = {
            TRAIN: metric_shapes("train_metrics", train_metrics, alike=alike),
            EVALUATE: metric_shapes("evaluate_metrics", evaluate_metrics, alike=alike),
        }
        if not isinstance(run_config, Mapping | None):
            raise ConfigError(f"run_config takes context.run_config, a mapping; got {type(run_config).__name__}")
        self._wanted = WantedTerms(
            defense, metrics, clients, bounds, largest_weight, _names(local), rounds, epsilon, ring, max_void,
            answer_after, str(getattr(inner, "weighted_by_key", "num-examples")), config_digest(run_config or {}),
            tuple(samplings(inner)), poll, patience, None if folder is None else Path(folder), seal,
        )  # fmt: skip
        self._wanted.check()
        self._check_metrics(inner)
        self._check_weight()
        if clients is not None:
            check_most_nodes(clients, self._wanted.for_nodes, self._wanted.samplings)
        self._secured: SumGrid | None = None
        self.history: list[SecureRound] = []

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the strategy; arguments and result as of Flower's `Strategy.start`.

        A run that cannot go on after a trained round, for instance because the privacy budget is spent, ends early: the
        result holds the last model, and `stopped` says why. `evaluate_fn` is not called for the rounds that are left.

        Raises:
            ConfigError: SuperNodes do not accept the terms, or arguments that do not fit together, such as a timeout
                that ends before clients answer (`answer_after`).
            BudgetSpent: the privacy budget does not allow a single round.
            PlanError: a phase has too few SuperNodes for its sum; nothing was trained.
            RoundVoid: no round of training gave a sum (where the strategy only evaluates: none of these); the text
                holds the reasons of the last one, and what a reply must hold.
        """
        self._wanted.check_timeout(timeout)
        if self._secured is None or self._secured.grid is not grid:
            self._secured = SumGrid(grid, self._wanted, self.history)
        secured = self._secured
        secured.begin()
        tested = -1  # the trained rounds that the model had when it was evaluated last

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            nonlocal tested
            if evaluate_fn is None or (secured.stopped is not None and secured.trained == tested):
                return None
            tested = secured.trained
            return evaluate_fn(server_round, arrays)

        logging.getLogger("securefed.flower").info("replies are summed under %s", as_defense(self._wanted.defense).name)
        result = self.strategy.start(
            secured, initial_arrays, num_rounds, timeout, train_config, evaluate_config,
            None if evaluate_fn is None else evaluate,
        )  # fmt: skip
        secured.end()
        return result

    @property
    def epsilon(self) -> float:
        """Epsilon of all exchanges of training so far, void ones included; infinite without noise, 0 before any.

        With a folder, those of earlier runs are included.
        """
        return 0.0 if self._secured is None else self._secured.epsilon

    @property
    def stopped(self) -> str | None:
        """Why the run ended before its last round; `None` if it did not."""
        return None if self._secured is None else self._secured.stopped

    @property
    def checked(self) -> str:
        """Which SuperNodes checked the last sum of each phase, in words; that none did, where the terms do not verify.

        Clients check every other sum before they answer the next round. What the strategy makes of a sum they do not
        check. Empty before `start` returned.
        """
        return "" if self._secured is None else self._secured.checked

    @property
    def arrays(self) -> ArrayRecord | None:
        """The newest model that the strategy sent; `None` before the first round."""
        return None if self._secured is None else self._secured.model

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the strategy's messages for a round of training."""
        return self.strategy.configure_train(server_round, arrays, config, _outermost(grid))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return what the strategy makes of the mean."""
        return self.strategy.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the strategy's messages for an evaluation."""
        return self.strategy.configure_evaluate(server_round, arrays, config, _outermost(grid))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return what the strategy makes of the mean metrics."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log the strategy's settings."""
        self.strategy.summary()

    def _check_metrics(self, inner: Strategy) -> None:
        metrics, clips = self._wanted.metrics, self._wanted.weighs_alike
        evaluates = getattr(inner, "fraction_evaluate", 0.0) > 0
        if clips and (evaluates or metrics[TRAIN] or metrics[EVALUATE]):
            raise ConfigError(
                f"{as_defense(self._wanted.defense).name} bounds all that one client contributes, so metrics cannot "
                "travel beside the update; leave them out, set fraction_evaluate=0.0 in the strategy, and evaluate at "
                "the server (evaluate_fn)"
            )
        if evaluates and not metrics[EVALUATE]:
            raise ConfigError(
                "the strategy evaluates at the clients, and no metric is named to be summed; give SecureStrategy "
                'evaluate_metrics=("eval_loss", ...), or the strategy fraction_evaluate=0.0'
            )

    def _check_weight(self) -> None:
        """Raise `ConfigError` where updates are weighted and the largest weight is not declared, or the reverse."""
        defense, largest = as_defense(self._wanted.defense), self._wanted.largest_weight
        alike = weighs_alike(defense)
        if alike == (largest is None):
            return
        if alike:
            raise ConfigError(
                f"{defense.name} changes all that one client contributes, so that every client weighs the same; leave "
                "largest_weight out"
            )
        raise ConfigError(
            f"updates are weighted by {self._wanted.weighted_by!r}, and the largest weight that one client may have is "
            "not declared; give SecureStrategy largest_weight=1000, say, the most examples of any client, in training "
            "and evaluation"
        )


def _names(given: Iterable[str]) -> tuple[str, ...]:
    """Return names as a tuple; raise `ConfigError` for one text, whose letters would be taken for names."""
    if isinstance(given, str):
        raise ConfigError(f"expected a tuple of names, such as ({given!r},); got the text {given!r}")
    return tuple(given)


def _checked(strategy: Strategy, aggregation: Aggregation) -> Strategy:
    """Check a strategy and those inside it; return the innermost.

    Args:
        strategy: the strategy.
        aggregation: how the sum is made; groups take the robust mean for some strategies, which get it as one reply.

    Raises:
        ConfigError: one that needs single replies.
    """
    if not isinstance(strategy, Strategy):
        raise ConfigError(f"SecureStrategy takes a strategy of flwr.serverapp.strategy; got {type(strategy).__name__}")
    name = next((name for name in _REFUSED if isinstance(strategy, getattr(flower, name))), None)
    if name is not None and not (isinstance(aggregation, Grouped) and aggregation.aggregator == _OF_GROUPS.get(name)):
        remedy = (
            f"; take it of the means of groups: grouped(secure_aggregation(), groups=5, "
            f'aggregator="{_OF_GROUPS[name]}") as the defence, largest_weight left out and fraction_evaluate=0.0'
        ) if name in _OF_GROUPS else ""  # fmt: skip
        raise ConfigError(f"{name} needs the single replies that a secure sum hides: it {_REFUSED[name]}{remedy}")
    if getattr(strategy, "accountant", None) is not None:
        raise ConfigError(
            f"{type(strategy).__name__} with an accountant discards every round whose number of replies is not the "
            "sampled number, and a secure sum gives one reply; leave the accountant out, or use chain(clip(...), "
            "skellam(...), secure_aggregation()) as the defence, which accounts for itself"
        )
    inner = getattr(strategy, "strategy", None)
    return strategy if inner is None else _checked(inner, aggregation)


def _outermost(grid: Grid) -> SumGrid:
    """Return the grid if its replies are summed.

    Raises:
        ConfigError: another one: a strategy around `SecureStrategy` would send messages past the sum.
    """
    if not isinstance(grid, SumGrid):
        raise ConfigError(
            "SecureStrategy stands outermost and is started itself: SecureStrategy(Wrapper(FedAvg()), ...)"
        )
    return grid
