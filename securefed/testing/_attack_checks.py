"""Checks that every attack must pass: it runs on views of short runs, and its estimates have the right form.

Authors of attacks run `CHECKS` through `securefed.testing` (`_parametrize`), and this project on all its own attacks.
A view is what an attacker sees of a run. An attack's `applies` returns `None` where it can run on a view, or says in a
sentence why not; `run` returns an estimate of the attack's secret (a client's rows, its Gram matrix, ...).

The attack is run on views of short runs of all algorithms that the audit runs. The views are those of: the server, an
observer of the sums only, the server with a colluding client, an observer of sums over changing clients, the server
with shuffled messages, and an observer of the result only.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from securefed._auditing.cases import case, case_names
from securefed._auditing.registered.scoring import SCORES
from securefed._runtime.federation import Federation
from securefed._runtime.run_options import RunOptions
from securefed.attacks import views
from securefed.attacks._base import Target, View
from securefed.datasets._loaders import LoadedDataset, digits
from securefed.defenses._chain import chain
from securefed.defenses._fixed_point import Quantise
from securefed.errors import ConfigError, TranscriptError

CLIENTS, ROUNDS = 4, 5


@cache
def views_of(algorithm: str) -> tuple[Target, dict[str, View]]:
    """Return the target and the views of a short run of an algorithm, and of a second run in which clients change.

    Args:
        algorithm: name of the algorithm; it runs with the settings of its audit case, on 200 rows of digits.

    Returns:
        The target, and the views of client 0 by name.
    """
    what, source = case(algorithm), digits()
    small = LoadedDataset(source.data.take(np.arange(200)), source.name, source.feature_bound, source.image_shape)
    prepared, method, defense = what.prepare(small, CLIENTS, 0), what.build(), chain(Quantise())
    whole = Federation(method, prepared.clients, defense, public=prepared.public).run(ROUNDS).transcript
    away = Federation(
        method,
        prepared.clients,
        defense,
        public=prepared.public,
        options=RunOptions(schedule=lambda k: range(k % 2, CLIENTS)),  # client 0 misses every other round
    )
    looks = {
        "server": views.server(whole, 0),
        "sum only": views.sum_only(whole, 0),
        "collusion": views.collusion(whole, 0, [1]),
        "changing": views.sum_only(away.run(ROUNDS).transcript, 0),
        "output only": views.output_only(whole, 0),
        "shuffled": views.shuffled(views.server(whole, 0), np.random.default_rng(0)),
    }
    return Target(method, prepared.public), looks


def check_description(attack: Any) -> None:
    """Check that the attack has `name`, `secret`, `applies` and `run`, and that its secret can be scored."""
    lacks = [name for name in ("name", "secret", "applies", "run") if not hasattr(attack, name)]
    if lacks:
        raise ConfigError(f"{type(attack).__name__} lacks {', '.join(f'`{name}`' for name in lacks)}")
    if attack.secret not in SCORES:
        raise ConfigError(f"{attack.name}: secret must be one of {', '.join(SCORES)}; got {attack.secret!r}")


def check_every_view(attack: Any) -> None:
    """Check that, on every view, the attack gives a reason not to run, or a finite and repeatable estimate."""
    for name in case_names():
        check_views_of(attack, name)


def check_something_is_attacked(attack: Any) -> None:
    """Check that the attack applies to some view with messages, and to none that holds only the result."""
    found = False
    for name in case_names():
        target, looks = views_of(name)
        found |= any(attack.applies(target, look) is None for look in looks.values())
        reason = attack.applies(target, looks["output only"])
        assert reason is not None, f"{attack.name}: it applies to the result of {name} alone, without a message"
    assert found, (
        f"{attack.name}: it applies to no view of any registered algorithm with an audit case; import the module of "
        "the algorithm whose messages it reads before this check"
    )


CHECKS = (check_description, check_every_view, check_something_is_attacked)


def check_views_of(attack: Any, algorithm: str) -> None:
    """Run an attack on the views of one algorithm.

    Args:
        attack: the attack.
        algorithm: name of an algorithm with an audit case.
    """
    target, looks = views_of(algorithm)
    for view, observed in looks.items():
        reason = attack.applies(target, observed)
        if reason is not None:
            assert len(reason.split()) >= 3, (
                f"{attack.name}: {reason!r} is no sentence; `applies` must give the reason in words"
            )
            _check_refuses(attack, target, observed)
            continue
        try:
            found = [attack.run(observed, target, np.random.default_rng(0)) for _ in range(2)]
        except TranscriptError:
            assert view == "shuffled", (
                f"{attack.name}: it applies to {algorithm}, {view}, yet `run` raises TranscriptError"
            )
            continue
        where = f"{attack.name} on {algorithm}, {view}"
        assert found[0].secret == attack.secret, (
            f"{where}: it must return the secret {attack.secret!r}; got {found[0].secret!r}"
        )
        if attack.secret != "personal":  # whose columns are parameters; every other secret has the data's columns
            assert found[0].value.shape[1] == target.public.features, (
                f"{where}: the estimate must have {target.public.features} columns; got {found[0].value.shape[1]}"
            )
        assert np.isfinite(found[0].value).all(), f"{where}: the estimate holds NaN or infinity"
        np.testing.assert_array_equal(found[0].value, found[1].value, err_msg=f"{where}: not repeatable")
        assert (found[0].members or observed.members) <= set(range(CLIENTS)), f"{where}: unknown clients"


def _check_refuses(attack: Any, target: Target, observed: View) -> None:
    """Check that `run` raises `TranscriptError` on a view that the attack says it does not apply to."""
    try:
        attack.run(observed, target, np.random.default_rng(0))
    except TranscriptError:
        return
    raise AssertionError(f"{attack.name}: `run` must raise TranscriptError where `applies` gives a reason")
