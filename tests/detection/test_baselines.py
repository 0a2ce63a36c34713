"""FedAE and FedBiGAN under FedAvg: registered as described, and they learn."""

import numpy as np
import pytest

from securefed import Dataset, Federation, RunOptions
from securefed.algorithms import algorithms, centralised
from securefed.detection import metrics, projection, reconstruction_errors
from securefed.detection._baselines import CODE, DEEP
from securefed.problems import problems


def clients(rng, count=4, noise=0.05):
    """Rows near a plane in 6 dimensions, every client on a part of it."""
    frame = np.linalg.qr(rng.normal(size=(6, 2)))[0].T
    codes = [rng.normal(size=(60, 2)) + (i - count / 2) * 0.3 for i in range(count)]
    return [Dataset(code @ frame * 1.5 + noise * rng.normal(size=(60, 6))) for code in codes]


def mean_error(method, output, data):
    rows = np.concatenate([d.x for d in data])
    return np.mean(reconstruction_errors(lambda x: method.problem.reconstruct(output, x), rows) ** 2)


@pytest.mark.parametrize("name", ["fedae", "fedae-2", "fedbigan", "fedbigan-2"])
def test_networks_have_the_layers_and_are_trained_by_fedavg(name):
    method, public_rows = algorithms.make(f"detection/{name}"), clients(np.random.default_rng(0))
    layers = method.problem.layers
    assert len(layers) == (4 if name.endswith("2") else 2) and layers[-1] == CODE
    assert algorithms.make(f"detection/{name}", code=2, learning_rate=0.3).problem.layers[-1] == 2
    assert "section V-A2" in algorithms[f"detection/{name}"].source
    out = Federation(method, public_rows, seed=0).run(1).output
    parts = {key.split(".")[0] for key in out}
    assert parts == ({"encoder", "decoder"} if "ae" in name else {"encoder", "generator", "discriminator"})


@pytest.mark.parametrize("widths", [(8,), pytest.param(DEEP, marks=pytest.mark.exhaustive)])
def test_an_autoencoder_learns_to_tell_rows_off_the_plane(widths):
    rng = np.random.default_rng(1)
    data = clients(rng)
    method = algorithms.make("detection/fedae", widths=widths, code=2, learning_rate=0.1, batch_size=10, local_epochs=3)
    federation = Federation(method, data, seed=0, options=RunOptions(keep_transcript=False))
    before = mean_error(method, federation.run(0).output, data)
    after = federation.run(60).output
    assert mean_error(method, after, data) < 0.2 * before
    rows = np.concatenate([d.x for d in data])
    mixed = np.vstack([rows, rows + rng.normal(size=rows.shape)])
    errors = reconstruction_errors(lambda x: method.problem.reconstruct(after, x), mixed)
    assert metrics(errors, np.repeat([0, 1], len(rows))).auc_roc > 0.9


@pytest.mark.exhaustive
def test_a_linear_autoencoder_approaches_the_error_of_pca():
    """One linear layer each way and no more: its optimum is the projection on the leading components."""
    # how fast an encoder forgets the directions off the plane goes with the variance there: not too small
    rows = np.concatenate([d.x for d in clients(np.random.default_rng(2), noise=0.4)])
    data = [Dataset(part) for part in np.array_split(np.random.default_rng(0).permutation(rows), 4)]
    method = algorithms.make("detection/fedae", widths=(), code=2, learning_rate=0.3, batch_size=None, local_epochs=5)
    assert method.problem == problems.make("autoencoder", layers=(2,))
    out = Federation(method, data, seed=0, options=RunOptions(keep_transcript=False)).run(150).output
    # biases let it centre the rows, which the PCA here does not: compare with the components of centred rows
    centred = Dataset(rows - rows.mean(axis=0))
    optimum = np.mean(reconstruction_errors(projection(centralised([centred], 2).basis), centred.x) ** 2)
    assert optimum * (1 - 1e-6) <= mean_error(method, out, data) < 1.02 * optimum


@pytest.mark.exhaustive
def test_a_bigan_trains_towards_rows_that_look_like_the_data():
    """No loss of a game falls by itself: what must hold is that the generated rows move to where the data are."""
    data = [Dataset(d.x + 2) for d in clients(np.random.default_rng(3))]
    method = algorithms.make("detection/fedbigan", widths=(16,), code=2, learning_rate=0.1, batch_size=30)
    federation = Federation(method, data, seed=0, options=RunOptions(keep_transcript=False))
    rows = np.concatenate([d.x for d in data])

    def distance(out):
        back = method.problem.reconstruct(out, rows)
        return np.linalg.norm(back.mean(axis=0) - rows.mean(axis=0))

    start = distance(federation.run(0).output)
    assert distance(federation.run(80).output) < 0.5 * start
