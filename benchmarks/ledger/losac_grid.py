"""LoSAC, Table 2 in full: rounds to 85 %, training loss and accuracy of both methods, T = 2, 4, 6 and M = 2, 3, 5."""

from __future__ import annotations

from functools import partial

from benchmarks.ledger.ledger import Context, Findings, Line, at_night
from benchmarks.ledger.losac_runs import LABEL_SORTED, PAPER, one_thread
from benchmarks.ledger.losac_tables import CLIENTS, COHORT, ESR, HAR, JUDGED, MNIST, RATE, Table, climb

STEPS = (2, 4, 6)
Figures = tuple[float, float, float]
"""Rounds to 85 %, loss, and accuracy in percent after 500 rounds."""
PRINTED: dict[tuple[str, str, int], tuple[Figures, Figures, Figures]] = {
    # by set, method and M, for each T
    ("MNIST", "SCAFFOLD", 2): ((64, 0.1853, 94.37), (47, 0.1268, 96.00), (39, 0.1051, 96.41)),
    ("MNIST", "SCAFFOLD", 3): ((63, 0.1958, 94.08), (39, 0.1392, 95.44), (37, 0.1109, 95.94)),
    ("MNIST", "SCAFFOLD", 5): ((57, 0.1847, 94.38), (44, 0.1253, 96.03), (43, 0.1061, 96.40)),
    ("MNIST", "LoSAC", 2): ((56, 0.1310, 95.91), (38, 0.0840, 96.83), (30, 0.0703, 96.97)),
    ("MNIST", "LoSAC", 3): ((46, 0.1162, 95.96), (32, 0.0632, 96.99), (34, 0.0438, 97.36)),
    ("MNIST", "LoSAC", 5): ((44, 0.0887, 96.45), (34, 0.0501, 97.26), (26, 0.0339, 97.53)),
    ("HAR", "SCAFFOLD", 2): ((177, 0.2244, 90.19), (175, 0.1558, 92.87), (170, 0.1479, 92.53)),
    ("HAR", "SCAFFOLD", 3): ((158, 0.2093, 91.45), (161, 0.1421, 92.74), (166, 0.1334, 92.40)),
    ("HAR", "SCAFFOLD", 5): ((137, 0.2178, 91.08), (156, 0.1518, 93.65), (122, 0.1373, 91.92)),
    ("HAR", "LoSAC", 2): ((102, 0.1611, 92.06), (47, 0.1253, 94.10), (61, 0.1176, 93.76)),
    ("HAR", "LoSAC", 3): ((74, 0.1185, 93.52), (44, 0.1014, 93.82), (35, 0.1035, 92.77)),
    ("HAR", "LoSAC", 5): ((89, 0.1076, 93.52), (55, 0.0902, 94.77), (43, 0.0921, 94.33)),
    ("ESR", "SCAFFOLD", 2): ((1952, 0.4213, 79.66), (956, 0.3765, 82.75), (617, 0.3480, 83.79)),
    ("ESR", "SCAFFOLD", 3): ((1972, 0.4208, 79.75), (944, 0.3767, 82.49), (619, 0.3470, 84.05)),
    ("ESR", "SCAFFOLD", 5): ((1941, 0.4212, 79.79), (969, 0.3765, 82.62), (621, 0.3485, 84.07)),
    ("ESR", "LoSAC", 2): ((1020, 0.3807, 82.40), (498, 0.3304, 85.02), (328, 0.2952, 87.37)),
    ("ESR", "LoSAC", 3): ((696, 0.3561, 83.13), (341, 0.2931, 87.30), (243, 0.2503, 89.28)),
    ("ESR", "LoSAC", 5): ((445, 0.3197, 85.54), (206, 0.2367, 90.05), (180, 0.1967, 91.54)),
}
WITHIN, POINTS = 0.25, 1.0
"""How far from printed rounds and losses still counts, as a share of them, and from a printed accuracy, in points."""


def grid(table: Table, context: Context) -> Findings:
    """Return the 54 figures of one set, and the paper's claims on M and T; one seed."""
    one_thread()
    name = table.where.rpartition(" ")[2]
    lines: list[Line] = []
    reached: dict[tuple[str, int, int], float] = {}
    for (_, method, blocks), printed in ((key, row) for key, row in PRINTED.items() if key[0] == name):
        for steps, (rounds, loss, accuracy) in list(zip(STEPS, printed, strict=True))[: 1 if context.quick else None]:
            limit = 10 if context.quick else max(JUDGED, -int(-1.3 * rounds // 10) * 10)
            last = min(JUDGED, limit)
            look = climb(table, method, context.seeds[0], limit, steps=steps, blocks=blocks, last=last)
            context.progress(f"{name}, {method}, T = {steps}, M = {blocks}: 85 % at round {look.reached}")
            about, judged = f"{method}, T = {steps}, M = {blocks}", last
            reached[method, steps, blocks] = float(look.reached or limit)
            for quantity, value, ours, slack, unit in (
                (f"rounds to 85 % ({limit} at most), {about}", rounds, reached[method, steps, blocks], None, ""),
                (f"training loss after {judged} rounds, {about}", loss, look.loss, None, ""),
                (f"accuracy after {judged} rounds, {about}", accuracy, look.at(judged), POINTS, "%"),
            ):
                near = WITHIN * value if slack is None else slack
                target = (round(value - near, 4), round(value + near, 4))
                lines.append(
                    Line(table.where, quantity, _setting(table), value, (ours,), target, False, unit, table.why)
                )
    return Findings((*lines, *(() if context.quick else _claims(table, reached))))


def _setting(table: Table) -> str:
    return (
        f"2NN, {table.start} start; {table.prepared}; N, S = {CLIENTS}, {COHORT}, {LABEL_SORTED}; eta = {RATE:g} on "
        "sums over rows (n_i * block gradient), as printed; one seed"
    )


def _claims(table: Table, reached: dict[tuple[str, int, int], float]) -> list[Line]:
    """Return what section 5.3 reads off the table."""
    claims = (
        ("'larger memory is better': rounds at M = 2 over M = 5, LoSAC, T = 2", ("LoSAC", 2, 2), ("LoSAC", 2, 5), 1.0),
        ("rounds of SCAFFOLD at T = 6 over LoSAC at T = 2, both M = 3", ("SCAFFOLD", 6, 3), ("LoSAC", 2, 3), 0.9),
    )
    return [
        Line(
            table.where,
            quantity,
            _setting(table),
            None,
            (reached[above] / reached[below],),
            (least, None),
            stated=False,
            evidence=table.why,
        )
        for quantity, above, below, least in claims
    ]


EXPERIMENTS = (
    at_night("losac/all-mnist", PAPER, "Table 2 in full, MNIST", partial(grid, MNIST), 80.0),
    at_night("losac/all-har", PAPER, "Table 2 in full, HAR", partial(grid, HAR), 15.0),
    at_night("losac/all-esr", PAPER, "Table 2 in full, ESR", partial(grid, ESR), 45.0),
)
