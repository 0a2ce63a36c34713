"""Turn a view of a gradient method into equations for the rows and starting points for their search.

The attacks of this folder that fit rows (`SampleFit`) call this first. A view holds for every round the broadcast and
the sum of some clients' messages; these clients are its members. From the recorded rounds this chooses those to fit,
and the method to simulate: the target's own, or one that sends the same gradients with less to simulate. For instance,
the changes that SCAFFOLD's clients send add up to gradients at the broadcast models, which clients of FedAvg with a
single step send at once. `sum_equations` has the equations, `starting_points` the starts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from securefed._public import Public
from securefed.algorithms._optimization.dsgd import DSGD
from securefed.algorithms._optimization.fedavg import FedAvg
from securefed.algorithms._optimization.losac import LoSAC
from securefed.algorithms._optimization.model import Model
from securefed.algorithms._optimization.scaffold import Scaffold
from securefed.algorithms._personalized.ditto import Ditto
from securefed.attacks._base import Target, View
from securefed.attacks._gradient_inversion.gradient_rounds import (
    GradientEstimate,
    GradientRound,
    LocalRound,
    estimate_gradients,
    method_of,
    penalty,
    read_rounds,
    stochastic,
)
from securefed.attacks._gradient_inversion.linear_model import LinearModel
from securefed.attacks._gradient_inversion.proximal_derivatives import is_proximal
from securefed.attacks._gradient_inversion.round_simulation import RoundSimulation
from securefed.attacks._gradient_inversion.starting_points import StartGenerator
from securefed.attacks._gradient_inversion.sum_equations import SumEquations

_MOST_ROUNDS = 40
"""Rounds to fit at most, and under noise: more rounds average more noise, and cost in proportion."""
_EQUATIONS_PER_UNKNOWN = 2.5
"""Equations to ask for, for each unknown; more of them cost time in proportion."""
_FIRST_ROUNDS = 3
"""Rounds of LoSAC that `_summed_blocks` leaves out, since its running sums lack blocks there. A client's rows are
divided into M blocks, of which each of T local steps a round draws one: a block is still missing after 3 rounds with
probability (1 - 1 / M)^(3 T), 1 in 512 for M = 2 and T = 3, the case in the tests. With M = 20 and T = 1 most are still
missing. That makes the starting points worse, for which alone these sums are used: no equation rests on them."""


@dataclass(frozen=True)
class RowFitProblem:
    """Equations for the rows that follow from a view.

    Attributes:
        equations: what the rows must satisfy.
        starts: starting points.
        known_points: whether the messages were rewritten as exact gradients at known parameters, so that no local steps
            need to be simulated.
        repeatable: whether the clients' steps use all rows; else full batches stand in for random ones.
        simulation: the members' rounds as a function of their rows in all features. That of `equations` takes rows in
            the equations' basis only; from this one, `PosteriorEstimate` builds equations in a basis of its own where a
            defence added noise.
    """

    equations: SumEquations
    starts: StartGenerator
    known_points: bool
    repeatable: bool
    simulation: RoundSimulation


def problem_from_view(
    observed: View, target: Target, *, rounds: int, telescope: bool = False, running_sums: bool = False
) -> RowFitProblem:
    """Read a view.

    Args:
        observed: the view.
        target: the attacked algorithm.
        rounds: number of rounds to fit, more if the rows need them: the first ones for methods with memory, otherwise
            spread over the run.
        telescope: use running sums of the contributions where they are exact gradients at known parameters: clients of
            SCAFFOLD and LoSAC send changes of a stored gradient, which add up to it.
        running_sums: read LoSAC's running sums as full gradients, as they are about once every block had its turn.
            Only the starting points of the result are of use (`_summed_blocks`).

    Raises:
        TranscriptError: the view does not fit the method.
    """
    history, model = read_rounds(observed, target), LinearModel.of(target)
    assert model is not None  # `read_rounds` refuses other models
    method: LocalRound = method_of(target)
    if isinstance(method, Ditto):  # sends FedAvg's messages; its personal models, which are not sent, cost time
        method = FedAvg(**{item.name: getattr(method, item.name) for item in fields(FedAvg)})
    if running_sums and isinstance(method, LoSAC):
        method, history = _summed_blocks(method, history)
    return problem_from_rounds(method, model, target.public, history, rounds=rounds, telescope=telescope)


def problem_from_rounds(
    method: LocalRound,
    model: LinearModel,
    public: Public,
    history: tuple[GradientRound, ...],
    *,
    rounds: int,
    telescope: bool = False,
) -> RowFitProblem:
    """Build the problem from rounds that are read already.

    Args:
        method: the client's part of a round.
        model: the linear model.
        public: the public facts of the federation.
        history: the rounds, in order.
        rounds: as in `problem_from_view`.
        telescope: as in `problem_from_view`.
    """
    gradients = estimate_gradients(history, method, public, model)
    members = sorted({client for item in history for client in item.members})
    sizes = tuple(public.rows[client] for client in members)
    repeatable = not stochastic(method, sizes)
    # A gradient of these models is a combination of the rows, so that rows are sought in the span of the gradients,
    # with fewer unknowns than in all features. The steps of a proximal method leave that span, but gradients that its
    # clients store do not: where there are any, the rounds are rewritten as plain gradients. Where there are none, the
    # method stays proximal, and `SumEquations.in_row_space` takes all features as the basis.
    known = (telescope or is_proximal(method)) and _stores_gradients(method, history) and repeatable
    if known:
        method, history = _telescoped(method, model, public, history, gradients)
    chosen = _chosen_rounds(method, model, public, history, rounds, sum(sizes))
    history = tuple(history[k] for k in chosen)
    present = tuple(sorted({client for item in history for client in item.members}))
    simulation = RoundSimulation(method, model, public, history, present)
    equations = SumEquations.in_row_space(simulation)
    starts = StartGenerator.of(equations, [gradients[k] for k in chosen])
    return RowFitProblem(equations, starts, known, repeatable, simulation)


def _chosen_rounds(
    method: LocalRound, model: LinearModel, public: Public, history: tuple[GradientRound, ...], rounds: int, rows: int
) -> list[int]:
    """Return the indices of the rounds to fit; `rounds` is the smallest number, `rows` that of all members' rows.

    Methods with memory are followed from the first round; of others rounds spread over the run are taken.
    """
    # B rows have B coordinates each in their span of B directions: B * B unknowns. A round holds outputs * (B + 1)
    # equations (+ 1 for the bias), so that about B / outputs rounds determine them.
    rounds = max(rounds, min(_MOST_ROUNDS, 2 + int(np.ceil(_EQUATIONS_PER_UNKNOWN * rows / model.outputs))))
    rounds += len({item.members for item in history}) - 1  # a member that comes and goes is in some of the sums only
    if any(item.noise for item in history):
        rounds = max(rounds, _MOST_ROUNDS)
    if method.memory(Model(method.problem, public)):
        return list(range(min(rounds, len(history))))
    return sorted({round(k) for k in np.linspace(0, len(history) - 1, rounds)})


def _stores_gradients(method: LocalRound, history: tuple[GradientRound, ...]) -> bool:
    """Return whether each client stores a gradient at the broadcast model, and the messages show the sum of these.

    A client sends the change of what it stores, so that the changes add up to it: if the members stay the same, and
    neither clips cut changes off nor noise adds up.
    """
    at_broadcast = isinstance(method, LoSAC | Scaffold) and method.local_steps == 1
    at_broadcast |= isinstance(method, Scaffold) and method.option == "I"  # a full gradient before the local steps
    changed = any(item.clips or item.noise for item in history)
    return at_broadcast and not changed and len({item.members for item in history}) == 1


def _summed_blocks(method: LoSAC, history: tuple[GradientRound, ...]) -> tuple[LocalRound, tuple[GradientRound, ...]]:
    """Read running sums of `dphi` as gradients, as DSGD's clients send them.

    dphi is the change of phi_i, which sums the stored gradients of all M blocks of client i (M times that, in the
    paper's printed formula). The first rounds are left out: not every block has a stored gradient yet.

    The result is a guess, for starting points: its equations are not to be fitted. A stored gradient is one at an
    earlier model, and the rounds returned have no clips, rounding or noise. `SampleFit`, the only caller, asks for them
    where one client draws blocks at random and no noise was added. It does not check for clips, which make these sums
    wrong: starts from them cost time, and what they lead to is reported as found only if it fits the messages.
    """
    scale = 1.0 / method.blocks if method.block_scale == "printed" else 1.0
    sums = np.cumsum([item.total["dphi"] for item in history], axis=0)
    rounds = [
        GradientRound({"x": s.received["x"]}, {"gradient": scale * v}, s.members)
        for s, v in zip(history, sums, strict=True)
    ]
    return DSGD(problem=method.problem), tuple(rounds[min(_FIRST_ROUNDS, len(history) - 1) :])


def _telescoped(
    method: LocalRound,
    model: LinearModel,
    public: Public,
    history: tuple[GradientRound, ...],
    gradients: list[GradientEstimate],
) -> tuple[LocalRound, tuple[GradientRound, ...]]:
    """Rewrite the rounds as those of a method that sends exactly the stored gradients.

    With G_i the gradient of client i's loss summed over its n_i rows, LoSAC's clients store G_i and SCAFFOLD's the mean
    G_i / n_i.

    Args:
        method: LoSAC or SCAFFOLD, where `_stores_gradients`.
        model: the linear model.
        public: the public facts of the federation.
        history: the rounds.
        gradients: one for each round, from `estimate_gradients`: without the penalty's gradient, sum_i G_i for LoSAC,
            and for SCAFFOLD sum_i G_i / n_i times the mean of the n_i, a factor that is divided out here.

    Returns:
        A method whose clients send what these store, and its rounds: the model x, and the data's gradient plus the
        penalty's, summed over the members.
    """
    if isinstance(method, LoSAC):  # DSGD's clients send G_i
        plain: LocalRound = DSGD(problem=method.problem)
        part, scale = "gradient", 1.0
    else:  # FedAvg's send -G_i / n_i after one step of rate 1
        plain = FedAvg(problem=method.problem, learning_rate=1.0, local_steps=1, weighting="uniform")
        part, scale = "delta", -1.0 / float(np.mean([public.rows[client] for client in history[0].members]))
    rounds = []
    for item, estimate in zip(history, gradients, strict=True):
        sums = float(np.sum([public.rows[c] for c in item.members]))
        total = scale * (estimate.gradient + sums * penalty(model, estimate.point))
        rounds.append(GradientRound({"x": estimate.point}, {part: total}, item.members))
    return plain, tuple(rounds)
