"""What Python prints of data and results is short and holds no client's values."""

from __future__ import annotations

import numpy as np

from securefed import Dataset, Federation
from securefed.algorithms import SSI
from securefed.attacks import PowerGram, Target, views
from securefed.datasets import LoadedDataset
from securefed.defenses import secure_aggregation

SECRET = 0.123456789


def test_no_repr_of_a_run_prints_values_or_grows_with_it() -> None:
    clients = [Dataset(np.full((40, 8), SECRET) + np.eye(40, 8), np.arange(40)) for _ in range(3)]
    lengths = []
    for rounds in (8, 16):
        federation = Federation(SSI(rank=2), clients, secure_aggregation())
        run = federation.run(rounds)
        seen = views.server(Federation(SSI(rank=2), clients).run(rounds).transcript, 0)
        found = PowerGram().run(seen, Target(federation.algorithm, federation.public), np.random.default_rng(0))
        record, message = run.transcript.records[0], run.transcript.sent[0]
        shown = [repr(value) for value in (clients[0], run, run.transcript, record, message, seen, seen.rounds[0])]
        assert not any("array(" in text or str(SECRET) in text for text in [*shown, repr(found)])
        lengths.append(max(map(len, shown)))
    assert lengths[1] <= lengths[0] + 20
    assert repr(clients[0]) == "Dataset(x=float64[40, 8], y=int64[40])"


def test_a_result_says_what_ran() -> None:
    run = Federation(SSI(rank=2), [Dataset(np.eye(9, 8))] * 3).run(1)
    first = str(run).splitlines()[0]
    assert first.startswith("1 rounds in ")
    assert first.endswith(" under plain")
    assert "output: basis (8, 2)" in str(run)


def test_a_loaded_dataset_shows_shapes_alone() -> None:
    loaded = LoadedDataset(Dataset(np.full((5, 2), SECRET)), "wards", 1.0)
    assert repr(loaded).startswith(
        "LoadedDataset(data=Dataset(x=float64[5, 2], y=None), name='wards', feature_bound=1.0,"
    )
