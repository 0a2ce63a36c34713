"""A file imports only from lower floors, and the two packages of floor 1 do not know each other."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.house import statements

ROOT = Path(__file__).parents[1]
FLOORS = {
    "_tensors": 0,
    "_shape_repr": 0,
    "_clipping_noise": 0,
    "_messages": 0,
    "_registry": 0,
    "_process_lock": 0,
    "_public": 0,
    "_class_names": 0,
    "_hyperparameters": 0,
    "_lazy": 0,
    "_extras": 0,
    "_persistence": 0,
    "_sampling": 0,
    "errors": 0,
    "algorithms": 1,
    "problems": 1,
    "datasets": 1,
    "detection": 1,
    "defenses": 1,
    "attacks": 2,
    "recording": 2,
    "parties": 2,
    "statistics": 2,
    "_runtime": 2,
    "_transports": 2,
    "_catalogue": 2,
    "_auditing": 3,
    "flower": 4,
    "testing": 4,
    "torch": 4,
    "_commands": 4,
    "__main__": 4,
}
FORBIDDEN = {("algorithms", "defenses"), ("problems", "defenses"), ("datasets", "defenses"), ("defenses", "algorithms")}
FORBIDDEN |= {
    ("detection", "defenses"),
    ("defenses", "detection"),
    ("defenses", "problems"),
    ("defenses", "datasets"),
    ("problems", "algorithms"),
    ("algorithms", "detection"),
    ("attacks", "_runtime"),
    ("attacks", "_transports"),
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
    for node in statements(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("securefed"):
            names |= {node.module.split(".")[1]} if "." in node.module else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("securefed.")}
    return names


def test_imports_point_downwards() -> None:
    wrong = []
    for path in FILES:
        own = part(path)
        for other in imported(ast.parse(path.read_text())):
            if FLOORS[other] > FLOORS[own]:
                wrong.append(f"{path} (floor {FLOORS[own]}) imports {other} (floor {FLOORS[other]})")
            if (own, other) in FORBIDDEN:
                wrong.append(f"{path}: {own} must not know {other}")
    assert not wrong


def test_the_rule_sees_a_violation() -> None:
    tree = ast.parse("from securefed._commands.cli import app\nimport securefed._auditing.engine.results")
    assert imported(tree) == {"_commands", "_auditing"}
    assert len(FILES) > 40
    assert set(map(part, FILES)) <= set(FLOORS)


def test_files_stay_small() -> None:
    assert not [str(path) for path in FILES if len(path.read_text().splitlines()) > 400]


ROOMS = {
    "alerts": 0,
    "sentences": 0,
    "engine": 1,
    "active": 2,
    "cases": 2,
    "differential_privacy": 3,
    "implied": 3,
    "report": 3,
    "own": 4,
    "registered": 5,
    "training": 5,
    "gate": 6,
    "advice": 7,
}
UPWARDS = {("engine", "report"), ("report", "gate")}
"""Folders of the audit that still import from above: reports print themselves, and the page of a comparison gates."""


def test_folders_of_the_audit_import_downwards() -> None:
    wrong = set()
    for path in sorted((ROOT / "securefed" / "_auditing").rglob("*.py")):
        own = path.parent.name
        for node in statements(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("securefed._auditing."):
                other = str(node.module).split(".")[2]
                if other != own and ROOMS[other] >= ROOMS[own]:
                    wrong.add((own, other))
    assert wrong <= UPWARDS
