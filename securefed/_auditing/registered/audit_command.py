"""The shell command that makes an audit again; every report states it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from securefed import _catalogue as catalogue
from securefed._auditing.alerts import FEWEST
from securefed._auditing.cases.audit_settings import Settings
from securefed._auditing.cases.own_setup import OwnSetup
from securefed._auditing.engine.audit_report import ACCEPTABLE
from securefed._auditing.registered.audited_defenses import USUAL


def audit_command(settings: Settings, algorithms: Sequence[str] | None, *, named_clients: bool) -> str:
    """Write the shell command that makes the same audit.

    Args:
        settings: the settings of the audit.
        algorithms: as in `audit`.
        named_clients: whether the user named the number of clients, which rows with owners else decide.
    """
    lists = (
        ("algorithms", tuple(algorithms or ()), ()),
        ("defenses", settings.defenses, USUAL),
        ("attacks", settings.attacks, catalogue.attacks.names),
    )
    parts = [f"--{name} {','.join(chosen)}" for name, chosen, usual in lists if chosen != usual]
    parts.append(f"--data {shlex.quote(settings.data)}")
    if named_clients or not settings.owner_column:
        parts.append(f"--clients {settings.clients}")
    if len(settings.sizes) > 1:
        parts.append(f"--rows-per-client {','.join(map(str, settings.sizes))}")
    parts += [
        *settings.form.command_options(),
        *_own_options(settings.own, settings.label_column),
        f"--seeds {settings.seeds}",
    ]
    parts += [f"--epsilon {settings.epsilon:g}", f"--delta {settings.delta:g}"]
    if settings.epsilons:
        parts.append(f"--epsilons {','.join(f'{epsilon:g}' for epsilon in settings.epsilons)}")
    if settings.survivor_change > 1:
        parts.append(f"--survivor-change {settings.survivor_change}")
    if settings.colluders:
        parts.append(f"--colluders {settings.colluders}")
    parts += ["--every-seed"] * settings.every_seed
    if settings.acceptable != ACCEPTABLE:
        parts.append(f"--acceptable {settings.acceptable:g}")
    parts += ["--membership"] * settings.membership + ["--active"] * settings.active
    return " ".join(["securefed audit", *parts])


def _own_options(own: OwnSetup, label: str) -> list[str]:
    """Write what the user changes of the audit cases as options of the command line."""
    named = (
        ("owner-column", own.owner), ("label-column", label), ("rows-per-client", own.rows), ("rounds", own.rounds),
    )  # fmt: skip
    options = [f"--{name} {shlex.quote(str(value))}" for name, value in named if value]
    options += [f"--fewest {own.fewest}"] * (own.fewest != FEWEST)
    for name, value in own.settings:
        text = value if isinstance(value, str) else json.dumps(value)
        options.append(f"--set {shlex.quote(f'{name}={text}')}")
    return options + ["--standardise"] * own.standardise
