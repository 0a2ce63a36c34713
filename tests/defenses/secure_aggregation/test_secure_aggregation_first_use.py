"""Identities on first use: what was met may not change, what was compared counts as handed over."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from securefed import Seal
from securefed.defenses import Identities, PinnedIdentities, new_identity, public_identity, secure_aggregation
from securefed.defenses._secure_aggregation.identities import fingerprint_of
from securefed.errors import ConfigError, IdentityChangedError, RolledBackError, StorageError, WrongKeyError

TRUE = Identities.generate(5)
VICTIM = 0
OWN = {VICTIM: TRUE.own[VICTIM]}


@pytest.fixture
def known(tmp_path):
    return PinnedIdentities(tmp_path / "known")


def written_by_the_server():
    """A roster for the victim: its own identity, and four of the server's, with their private keys."""
    keys = {client: new_identity() for client in range(1, 5)}
    return {VICTIM: TRUE.public[VICTIM]} | {c: public_identity(key) for c, key in keys.items()}, keys


def test_what_was_met_is_remembered_and_own_keys_need_no_comparison(known) -> None:
    first = known.pin(TRUE.public, OWN)
    assert first.public == TRUE.public
    assert first.own == OWN
    assert first.first_use == {1, 2, 3, 4}
    written = known.path.read_bytes()
    assert known.path.stat().st_mode & 0o077 == 0
    assert known.pin(TRUE.public, OWN).first_use == {1, 2, 3, 4}
    assert known.path.read_bytes() == written
    fewer = {client: TRUE.public[client] for client in (0, 3)}
    assert known.pin(fewer, OWN).first_use == {3}
    joined = fewer | {9: public_identity(new_identity())}
    assert known.pin(joined, OWN).first_use == {3, 9}
    assert known.pin(TRUE.public).first_use == {1, 2, 3, 4}  # what was this party's own once needs none later
    assert OWN[VICTIM] not in known.path.read_bytes()  # a private key is not written


def test_another_identity_in_a_clients_name_is_refused_by_name(known, tmp_path) -> None:
    known.pin(TRUE.public, OWN)
    other = TRUE.public | {3: public_identity(new_identity())}
    with pytest.raises(IdentityChangedError, match="client 3 was pinned to the identity") as caught:
        known.pin(other, OWN)
    assert fingerprint_of(TRUE.public[3]) in str(caught.value)
    assert fingerprint_of(other[3]) in str(caught.value)
    moved = {client: TRUE.public[client] for client in (0, 1)} | {7: TRUE.public[3]}
    with pytest.raises(IdentityChangedError, match="client 7 comes with the identity that is pinned for client 3"):
        known.pin(moved, OWN)
    assert known.pin(TRUE.public, OWN).public == TRUE.public  # a refusal changes nothing
    assert 3 in PinnedIdentities(tmp_path / "of another party").pin(other, OWN).first_use  # control: no memory, no word
    known.forget(3)
    assert 3 in known.pin(other, OWN).first_use
    with pytest.raises(ConfigError, match="client 8 has no pinned identity"):
        known.forget(8)


def test_a_fingerprint_that_was_compared_counts_as_handed_over_and_another_is_refused(known) -> None:
    met = known.pin(TRUE.public, OWN)
    heard = TRUE.fingerprint
    shown, _ = written_by_the_server()
    with pytest.raises(ConfigError, match="shown different identities"):
        known.confirm(met, Identities(shown).fingerprint)
    with pytest.raises(ConfigError, match="shown different identities"):
        known.confirm(met, heard[:-1])
    assert known.pin(TRUE.public, OWN).first_use == {1, 2, 3, 4}
    for words in (heard, heard.upper().replace(" ", "")):
        assert known.confirm(met, words).first_use == frozenset()
    assert known.pin(TRUE.public, OWN).first_use == frozenset()
    joined = dict(TRUE.public) | {5: public_identity(new_identity())}
    assert known.pin(joined, OWN).first_use == {5}  # the others stay compared
    with pytest.raises(IdentityChangedError):  # compared or not, what is remembered does not change
        known.confirm(Identities(shown, OWN), Identities(shown).fingerprint)


def test_one_fingerprint_for_each_identity() -> None:
    assert len({fingerprint_of(key) for key in TRUE.public.values()}) == 5
    assert all(len(fingerprint_of(key).replace(" ", "")) == 40 for key in TRUE.public.values())


def test_a_server_that_writes_the_roster_at_first_contact_plays_all_others_and_at_no_later_one(net, known) -> None:
    """At first contact it opens the victim's contribution, as the plan says; a party that met the true clients before
    refuses the roster, and so does one that hears the true fingerprint."""
    shown, keys = written_by_the_server()
    fooled = known.pin(shown, OWN)
    protocol = secure_aggregation(identities=Identities(shown, OWN | keys, fooled.first_use))
    session = net.session(range(5), identities=fooled)
    assert "honest but curious at first contact" in " ".join(session.plan.assumptions)
    contributions = net.contributions(session)
    total = net.drive(session, contributions, protocol=protocol).aggregate.total["w"]
    played = net.sum(contributions, range(1, 5))["w"]  # the server's own words
    assert np.array_equal(total - played, contributions[VICTIM]["w"])
    with pytest.raises(ConfigError, match="shown different identities"):
        known.confirm(fooled, TRUE.fingerprint)
    before = PinnedIdentities(known.path.with_name("of one that met them"))
    before.pin(TRUE.public, OWN)
    with pytest.raises(IdentityChangedError, match="client 1 was pinned to"):
        before.pin(shown, OWN)


def test_the_plan_says_who_was_taken_on_first_use(net, known) -> None:
    def words(identities, **options):
        return " ".join(net.plan(5, identities=identities, **options).assumptions)

    met = known.pin(TRUE.public, OWN)
    for identities in (met, TRUE):
        curious = "honest but curious at first contact: the identities of clients 1, 2, 3, 4" in words(identities)
        unless = "If it wrote none of them, the server may deviate" in words(identities)
        assert curious is unless is (identities is met)
        assert ("nor against a server that wrote a client's identity" in words(identities, verify=True)) is curious
    assert "honest but curious" not in words(known.confirm(met, TRUE.fingerprint))
    assert "identities on first use" in str(secure_aggregation(identities=met))
    assert "first use" not in str(secure_aggregation(identities=TRUE))
    many = Identities(Identities.generate(12).public, first_use=frozenset(range(12)))
    assert "of clients 0, 1, 2, 3, 4, 5, 6, 7 and 4 more were" in words(many)


def test_the_file_is_sealed_and_neither_altered_nor_set_back_nor_removed_unseen(tmp_path) -> None:
    key, other = bytes(range(32)), bytes(range(1, 33))
    sealed = PinnedIdentities(tmp_path / "sealed", Seal(key, tmp_path / "elsewhere" / "anchor"))
    clear = PinnedIdentities(tmp_path / "clear")
    for memory in (sealed, clear):
        memory.pin({0: TRUE.public[0]})
    early = sealed.path.read_bytes(), clear.path.read_bytes()
    for memory in (sealed, clear):
        memory.pin(TRUE.public)
    assert (TRUE.public[1] in sealed.path.read_bytes(), TRUE.public[1] in clear.path.read_bytes()) == (False, True)
    with pytest.raises(WrongKeyError):
        PinnedIdentities(sealed.path, Seal(other)).pin(TRUE.public)
    for memory in (sealed, clear):
        whole = memory.path.read_bytes()
        for place in itertools.chain(range(0, len(whole), 37), [len(whole) - 1]):
            memory.path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            with pytest.raises(StorageError):
                memory.pin(TRUE.public)
        memory.path.write_bytes(whole)
        assert memory.pin(TRUE.public).first_use == {0, 1, 2, 3, 4}
    sealed.path.write_bytes(early[0])
    clear.path.write_bytes(early[1])
    with pytest.raises(RolledBackError):
        sealed.pin(TRUE.public)
    clear.pin(TRUE.public)  # control: without an anchor the change is not noticed
    for memory in (sealed, clear):
        memory.path.unlink()
    with pytest.raises(StorageError, match="is gone, and its anchor"):
        sealed.pin(TRUE.public)
    clear.pin(TRUE.public)
    empty = PinnedIdentities(tmp_path / "one")
    empty.pin({0: TRUE.public[0]})
    empty.forget(0)
    assert empty.pin({0: TRUE.public[1]}).first_use == {0}
