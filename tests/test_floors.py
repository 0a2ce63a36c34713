"""A file imports only from lower floors, and the two packages of floor 1 do not know each other."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = {
    "_lazy": 0,
    "tensors": 0,
    "messages": 0,
    "state": 0,
    "storage": 0,
    "sealing": 0,
    "sampling": 0,
    "registry": 0,
    "errors": 0,
    "public": 0,
    "algorithms": 1,
    "problems": 1,
    "datasets": 1,
    "detection": 1,
    "defenses": 1,
    "history": 2,
    "cohort": 2,
    "costs": 2,
    "secret_cohorts": 2,
    "selection": 2,
    "privacy": 2,
    "privacy_cost": 2,
    "book": 2,
    "ledger": 2,
    "records": 2,
    "opening": 2,
    "counted_clients": 2,
    "exchange_context": 2,
    "exchange_schedule": 2,
    "node_state": 2,
    "refusals": 2,
    "schema": 2,
    "node": 2,
    "coordinator": 2,
    "checkpoint": 2,
    "client_state": 2,
    "federation": 2,
    "run_options": 2,
    "server": 2,
    "terms": 2,
    "flower": 4,
    "transports": 2,
    "attacks": 2,
    "catalogue": 2,
    "auditing": 3,
    "running": 3,
    "testing": 4,
    "wrap": 4,
    "__main__": 4,
    "cli": 4,
    "commands": 4,
    "printing": 4,
}
FORBIDDEN = {("algorithms", "defenses"), ("problems", "defenses"), ("datasets", "defenses"), ("defenses", "algorithms")}
FORBIDDEN |= {("problems", "algorithms"), ("problems", "detection"), ("algorithms", "detection")}
FORBIDDEN |= {
    ("detection", "defenses"),
    ("defenses", "detection"),
    ("defenses", "problems"),
    ("defenses", "datasets"),
    ("attacks", "federation"),
    ("attacks", "server"),
    ("attacks", "terms"),
    ("attacks", "node"),
}


def part(path: Path) -> str:
    relative = path.relative_to(ROOT).parts
    return Path(relative[1] if relative[0] == "securefed" else relative[0]).stem


FILES = [
    path
    for top in ("securefed", "attacks", "defenses")
    for path in sorted((ROOT / top).rglob("*.py"))
    if path != ROOT / "securefed" / "__init__.py"
]


def imported(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("securefed"):
            names |= {node.module.split(".")[1]} if "." in node.module else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("securefed.")}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downwards(path: Path) -> None:
    own = part(path)
    for other in imported(ast.parse(path.read_text())):
        assert FLOORS[other] <= FLOORS[own], f"{path} (floor {FLOORS[own]}) imports {other} (floor {FLOORS[other]})"
        assert (own, other) not in FORBIDDEN, f"{own} must not know {other}"


def test_the_rule_sees_a_violation() -> None:
    assert imported(ast.parse("from securefed.cli import app\nimport securefed.auditing.cells")) == {"cli", "auditing"}
    assert len(FILES) > 40
    assert set(map(part, FILES)) <= set(FLOORS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_stay_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 420
