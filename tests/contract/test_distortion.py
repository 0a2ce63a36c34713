"""What transcripts say of clips and noise is what was done to the numbers."""

from __future__ import annotations

import numpy as np
import pytest

from securefed import Dataset, Federation, Transcript, chain
from securefed._clipping_noise import ClippingNoiseRecord
from securefed._persistence import container
from securefed.algorithms import SSI
from securefed.attacks import views
from securefed.defenses import adaptive_clip, clip, clip_each, gaussian, local_gaussian, secure_aggregation, skellam
from securefed.defenses._differential_privacy import InsecureGaussian
from securefed.defenses._differential_privacy.clip import clipped, norm_of
from securefed.errors import DataError, StorageError
from securefed.recording import Recording
from tests.combinations import each_value

FEATURES, RANK, CLIENTS = 60, 50, 4
NORM = 0.5
NOISY = {
    "central": chain(clip(NORM), gaussian(2.0)),
    "seeded": chain(clip(NORM), InsecureGaussian(gaussian(2.0), 1)),
    "each tensor": chain(clip_each(NORM), gaussian(2.0)),
    "adaptive": chain(adaptive_clip(0.5, initial=NORM), gaussian(2.0)),
    "distributed": chain(clip(NORM), skellam(2.0, survivors=3), secure_aggregation(threshold=3)),
    "adaptive, distributed": chain(adaptive_clip(0.5, initial=NORM), skellam(2.0), secure_aggregation(threshold=3)),
    "local": chain(clip(NORM), local_gaussian(2.0)),
}


def run(defense) -> Transcript:
    rng = np.random.default_rng(0)
    clients = [Dataset(rng.uniform(0, 1, (30, FEATURES))) for _ in range(CLIENTS)]
    return Federation(SSI(rank=RANK), clients, defense, seed=0).run(1).transcript


def clear(each: bool = False) -> list[np.ndarray]:
    """Each client's contribution to the first round, clipped whole or tensor by tensor."""
    whole = [run(chain()).contributions[0, client] for client in range(CLIENTS)]
    return [clipped({"product": own["product"]} if each else own, NORM)["product"] for own in whole]


@pytest.mark.parametrize(("name", "view"), each_value(NOISY, [views.sum_only, views.released]))
def test_clip_and_noise_are_told_as_they_are(name, view) -> None:
    each = name == "each tensor"
    own, transcript = clear(each), run(NOISY[name])
    (observation,) = view(transcript, 0).rounds
    together = (("product",), ("captured",)) if each else (("product", "captured"),)
    assert observation.clips == tuple((names, NORM) for names in together)
    gap = observation.message["product"] - np.sum(own, axis=0)
    told = observation.noise.get("product", 0.0)
    if not told:
        assert np.abs(gap).max() < 1e-9
    else:  # of a mean square of 3000 draws .026 is a standard deviation
        assert 0.8 < np.mean(gap**2) / told**2 < 1.25


def test_own_noise_of_the_clients_is_shared_by_those_behind_a_message() -> None:
    transcript = run(NOISY["local"])
    whole, single = views.sum_only(transcript, 0).rounds[0], views.server(transcript, 0).rounds[0]
    assert single.noise["product"] == pytest.approx(whole.noise["product"] / np.sqrt(CLIENTS))
    gap = single.message["product"] - clear()[0]
    assert 0.8 < np.mean(gap**2) / single.noise["product"] ** 2 < 1.25


def test_the_clear_has_no_distortion() -> None:
    assert run(chain(secure_aggregation())).records[0].distortion == ClippingNoiseRecord()


def test_it_is_kept_in_files(tmp_path) -> None:
    transcript = run(NOISY["adaptive, distributed"])
    transcript.save(tmp_path / "t")
    assert Transcript.load(tmp_path / "t").records[0].distortion == transcript.records[0].distortion


def test_files_of_others_need_not_have_it_and_one_of_a_wrong_form_is_refused(tmp_path, monkeypatch) -> None:
    transcript = run(chain())
    monkeypatch.setattr(ClippingNoiseRecord, "to_json", lambda self: {"clips": 3})
    transcript.save(tmp_path / "wrong")
    with pytest.raises(StorageError, match="wrong type"):
        Transcript.load(tmp_path / "wrong")
    meta, tensors = container.load(tmp_path / "wrong", "transcript")
    for record in meta["records"]:
        del record["distortion"]
    container.save(tmp_path / "without", "transcript", meta, tensors)
    assert Transcript.load(tmp_path / "without").records[0].distortion == ClippingNoiseRecord()


def test_imported_rounds_may_state_it() -> None:
    recording = Recording(rows=[3, 3], features=2)
    update = {"w": np.ones(2)}
    recording.round({}, {0: update, 1: update}, clip=2.0, noise=0.1)
    single = views.server(recording.finish({}), 0)
    recording.sums({}, update, [0, 1], noise=0.3)
    whole = views.sum_only(recording.finish({}), 0)
    assert single.rounds[0].clips == ((("w",), 2.0),) and single.rounds[0].noise["w"] == pytest.approx(0.1)
    assert whole.rounds[0].noise["w"] == pytest.approx(0.1 * np.sqrt(2)) and whole.rounds[1].noise["w"] == 0.3
    assert norm_of(update) < 2.0 and not whole.rounds[1].clips
    for wrong in ({"clip": 0.0}, {"clip": float("inf")}, {"noise": -1.0}, {"noise": float("nan")}):
        with pytest.raises(DataError, match=r"clip must be|noise must be"):
            recording.sums({}, update, [0, 1], **wrong)
