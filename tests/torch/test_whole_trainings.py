"""Trainings as users write them: parameters that a batch does not use, GradScaler, BatchNorm, Lightning, Trainer."""

from __future__ import annotations

import numpy as np
import pytest

from tests.torch import workers_training
from tests.torch.ranks import Found, spawn_once


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    return spawn_once("trainings", workers_training.trainings, 3, tmp_path_factory)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    return spawn_once("packages", workers_training.packages, 3, tmp_path_factory)


def test_a_parameter_that_a_batch_does_not_use_counts_as_zero_gradient(three) -> None:
    for found in three:
        np.testing.assert_allclose(found["unused/masked"], found["unused/plain"], atol=1e-6)
        assert (found["unused/gradients of what no batch uses"] == 0).all()


def test_the_bound_follows_the_scale_of_a_grad_scaler(three) -> None:
    for found in three:
        assert found["scaled/given moved"].all()
        assert found["scaled/given scale"] > 65536
        assert found["scaled/given unscaled"] < 64
        assert str(found["scaled/given log"]) == ""


def test_a_step_that_is_lost_to_an_unknown_scale_is_told_once(three) -> None:
    for found in three:
        assert not found["scaled/not given moved"][0]
        (line,) = str(found["scaled/not given log"]).splitlines()
        assert "a step was lost" in line and "scaler=" in line


def test_batch_norm_statistics_are_those_of_all_ranks(three) -> None:
    means = np.array([found["norm/mean before"] for found in three])
    variances = np.array([found["norm/variance before"] for found in three])
    for rank, found in enumerate(three):
        np.testing.assert_allclose(found["norm/mean"], means.mean(0), atol=1e-6)
        np.testing.assert_allclose(
            found["norm/variance"], (variances + (means - means.mean(0)) ** 2).mean(0), atol=1e-6
        )
        assert str(found["norm/beyond"]).startswith("RangeRefused")
        assert (found["norm/after a refusal"] == means[rank]).all()
        assert str(found["norm/nothing"]).startswith("ConfigError: no layer of this Linear")


@pytest.mark.exhaustive
@pytest.mark.parametrize("loop", ["lightning/", "hf/trainer "])
def test_a_trainer_of_another_package_computes_what_it_computes_in_the_clear(packages, loop) -> None:
    for found in packages:
        assert found[f"{loop}masked calls"] == 6
        np.testing.assert_allclose(found[f"{loop}masked"], found[f"{loop}plain"], atol=2e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("loop", ["lightning/", "hf/trainer "])
def test_a_trainer_of_another_package_passes_over_a_lost_step(packages, loop) -> None:
    for found in packages:
        assert np.isfinite(found[f"{loop}lost"]).all()
        assert np.abs(found[f"{loop}lost"] - found[f"{loop}plain"]).max() > 1e-3


@pytest.mark.exhaustive
def test_a_loop_of_accelerate_computes_what_it_computes_in_the_clear(packages) -> None:
    for found in packages:
        np.testing.assert_allclose(found["hf/accelerate masked"], found["hf/accelerate plain"], atol=2e-6)
