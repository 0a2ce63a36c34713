"""The agreement of keys between ranks in threads of one process, with an attacker on the network."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec, module_from_spec
from typing import Any

import numpy as np
import pytest

from securefed import Array
from securefed.defenses import Identities, new_identity, public_identity
from securefed.errors import AuthenticationError, ConfigError, MaskMismatch, PlanError, VersionRefused
from securefed.torch._agreement import AgreedSettings, Agreement
from securefed.torch._masking import Call
from tests.torch.ranks import agreements

SIGNED = AgreedSettings(32, 1.0, 64.0, 0.0, True)


def pinned(ranks: int) -> Callable[[int], Identities]:
    every = Identities.generate(ranks)
    return lambda rank: Identities(every.public, {rank: every.own[rank]})


def flipped(place: int, call: int) -> Callable[[int, int, Array], Array]:
    """An attacker who alters one number of what rank 1 sees in one exchange."""

    def tamper(rank: int, number: int, total: Array) -> Array:
        if rank == 1 and number == call:
            total = total.copy()
            total[place] = total[place] + 1 if abs(total[place]) < 100 else total[place] - 1
        return total

    return tamper


@pytest.mark.parametrize("ring", [32, 64])
@pytest.mark.parametrize("ranks", [3, 5])
def test_all_ranks_agree_and_their_masks_cancel(ranks, ring) -> None:
    found = agreements(ranks, lambda rank: AgreedSettings(ring, 1.0, 64.0, 0.0, False))
    assert all(isinstance(one, Agreement) for one in found), found
    assert len({one.fingerprint for one in found}) == 1
    call = Call("hook", 5, 100, ring, 1.0)
    total = np.sum([one.masks.expand(call) for one in found], axis=0, dtype=f"u{ring // 8}")
    found[2].masks.remove_common(total, call)
    assert not total.any()


def test_two_agreements_share_nothing() -> None:
    first, second = (agreements(3)[0] for _ in range(2))
    call = Call("hook", 0, 64, 32, 1.0)
    assert first.fingerprint != second.fingerprint
    assert not (first.masks.expand(call) == second.masks.expand(call)).all()


def test_two_ranks_are_refused_with_the_reason_and_the_remedy() -> None:
    for one in agreements(2):
        assert isinstance(one, PlanError)
        assert "the gradient of the other" in str(one)
        assert "three parties or more" in str(one)


@pytest.mark.parametrize(
    ("odd", "name"),
    [
        (AgreedSettings(64, 1.0, 64.0, 0.0, False), "ring"),
        (AgreedSettings(32, 2.0, 64.0, 0.0, False), "bound"),
        (AgreedSettings(32, 1.0, 32.0, 0.0, False), "headroom"),
        (AgreedSettings(32, 1.0, 64.0, 8.0, False), "ceiling"),
        (AgreedSettings(32, 1.0, 64.0, 0.0, True), "identities"),
        (AgreedSettings(32, 1.0, 64.0, 0.0, False, "chacha20"), "the masks' stream, which follows from device="),
    ],
)
def test_ranks_with_other_settings_are_named(odd, name) -> None:
    identities = pinned(3)
    found = agreements(
        3,
        lambda rank: odd if rank == 2 else AgreedSettings(32, 1.0, 64.0, 0.0, False),
        lambda rank: identities(rank) if rank == 2 and odd.signed else None,
    )
    assert any(isinstance(one, ConfigError) and f"differ in {name}" in str(one) for one in found)
    assert not any(isinstance(one, Agreement) for one in found)


def of_version(version: int) -> Any:
    """The module as a release has it that speaks this version."""
    spec = find_spec("securefed.torch._agreement")
    assert spec is not None and spec.loader is not None
    release = module_from_spec(spec)
    spec.loader.exec_module(release)
    release.VERSION = version
    return release


@pytest.mark.parametrize("signed", [False, True])
def test_ranks_of_another_version_are_named_on_every_rank(signed) -> None:
    identities = pinned(3)

    def found(version: int) -> list[Agreement | Exception]:
        other = of_version(version)
        return agreements(
            3,
            lambda rank: AgreedSettings(32, 1.0, 64.0, 0.0, signed),
            lambda rank: identities(rank) if signed else None,
            module=lambda rank: other if rank == 2 else of_version(1),
        )

    refused = found(2)
    assert all(isinstance(one, VersionRefused) for one in refused), refused
    assert all("version 1: ranks [0, 1]; version 2: ranks [2]" in str(one) for one in refused)
    assert [one.sender for one in refused] == [2, 2, 0]  # type: ignore[union-attr]
    agreed = found(1)  # positive control
    assert len({one.fingerprint for one in agreed}) == 1  # type: ignore[union-attr]


def test_the_version_comes_before_all_else_that_a_rank_shows() -> None:
    """A later version may show other rows afterwards: the first sum has the same length in each."""
    lengths: dict[int, list[int]] = {rank: [] for rank in range(3)}

    def note(rank: int, call: int, total: Array) -> Array:
        lengths[rank].append(total.size)
        return total

    agreements(3, tamper=note, module=lambda rank: of_version(1 + rank))
    assert lengths == {0: [6], 1: [6], 2: [6]}


def test_identities_sign_the_agreement() -> None:
    found = agreements(3, lambda rank: SIGNED, pinned(3))
    assert all(isinstance(one, Agreement) for one in found), found


def test_a_rank_with_another_identity_is_named() -> None:
    real, key = pinned(3), new_identity()

    def identities(rank: int) -> Identities:
        known = real(rank)
        return Identities({**known.public, 1: public_identity(key)}, {1: key}) if rank == 1 else known

    found = agreements(3, lambda rank: SIGNED, identities)
    assert isinstance(found[0], AuthenticationError)
    assert found[0].sender == 1
    assert not isinstance(found[2], Agreement)


def test_a_rank_without_its_private_identity_is_told_so() -> None:
    real = pinned(3)
    found = agreements(
        3, lambda rank: SIGNED, lambda rank: Identities(real(rank).public, {}) if rank == 1 else real(rank)
    )
    assert isinstance(found[1], ConfigError)
    assert "no private key of rank 1" in str(found[1])


ALTERED = {
    "the version of rank 0": (0, 0),
    "its own version": (0, 2),
    "the key of rank 0": (1, 0),
    "the key of rank 2": (1, 2 * 53),
    "the bound of rank 2": (1, 2 * 53 + 32 + 5),
    "its own key": (1, 53),
    "the common key, sealed for it": (2, 64 + 48),
    "a number of the trial": (3, 0),
    "a check word of the trial": (3, -1),
}


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("what", [*ALTERED, "a signature"])
def test_what_an_attacker_alters_for_one_rank_ends_the_agreement_there(what, signed) -> None:
    identities, (call, place) = pinned(3), {**ALTERED, "a signature": (2, 0)}[what]
    found = agreements(
        3,
        lambda rank: AgreedSettings(32, 1.0, 64.0, 0.0, signed),
        lambda rank: identities(rank) if signed else None,
        flipped(place, call),
    )
    if what == "a signature" and not signed:  # the control: zeros stand there, which nothing reads
        assert all(isinstance(one, Agreement) for one in found)
    else:
        assert isinstance(found[1], AuthenticationError | MaskMismatch | ConfigError | VersionRefused), found[1]
