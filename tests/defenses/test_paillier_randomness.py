"""Paillier randomness: encryptions of zero, exponents of the stated length, never twice, by workers as by oneself."""

import copy
import os
from contextlib import closing

import gmpy2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed.defenses._homomorphic import RandomnessPool, cipher, generate, randomness_workers
from securefed.defenses._homomorphic import randomness_pool as pool_module
from securefed.defenses._homomorphic.encryption_randomness import (
    RANDOMNESS_KINDS,
    FixedBasePowers,
    compute_encryptions_of_zero,
    exponent_bits,
    power_table,
)
from securefed.defenses._homomorphic.randomness_pool import encryptions_of_zero
from securefed.errors import ConfigError

SMALL = generate(512)
PUBLIC = SMALL.public
SQUARE = gmpy2.mpz(PUBLIC.n) ** 2


@pytest.mark.parametrize("randomness", RANDOMNESS_KINDS)
def test_randomness_encrypts_zero_and_no_piece_comes_twice(randomness):
    out = encryptions_of_zero(PUBLIC, 64, randomness)
    assert cipher.decrypt(SMALL, out) == [0] * 64
    assert len(set(out)) == 64
    assert 1 not in out


@pytest.mark.parametrize("randomness", RANDOMNESS_KINDS)
def test_ciphertexts_of_one_plaintext_are_all_different(randomness):
    out = cipher.encrypt(PUBLIC, [7] * 64, randomness)
    assert len(set(out)) == 64
    # A ciphertext without randomness would be 1 + 7 n: none is.
    assert (1 + 7 * PUBLIC.n) not in out


# Powers


@pytest.mark.parametrize("base", [3, PUBLIC.n + 1, PUBLIC.n**2 - 2], ids=["3", "n + 1", "n^2 - 2"])
@pytest.mark.parametrize(("bits", "width"), [(64, 8), (64, 10), (13, 5), (7, 9), (1, 1)])
@given(data=st.data())
def test_table_of_powers_agrees_with_pow(base, bits, width, data):
    exponent = data.draw(st.sampled_from([0, 1, 2**bits - 1]) | st.integers(0, 2**bits - 1))
    assert FixedBasePowers(gmpy2.mpz(base), PUBLIC.n, bits, width).power(exponent) == pow(base, exponent, int(SQUARE))


@pytest.mark.parametrize(
    ("bits", "randomness", "length"),
    [(2048, "half", 1024), (2048, "short", 400), (3072, "half", 1536), (3072, "short", 448), (2048, "full", 2048)],
)
def test_lengths_of_exponents(bits, randomness, length):
    assert exponent_bits(bits, randomness) == length


def test_short_randomness_is_refused_where_no_length_is_settled():
    with pytest.raises(ConfigError, match=r"3072 bits; got 4096.*half"):
        exponent_bits(4096, "short")


@pytest.mark.parametrize("randomness", ["half", "short"])
def test_exponents_are_uniform_over_their_whole_length(randomness, monkeypatch):
    """Every bit is set in half of 2800 exponents: |ones - 1400| <= 7 sd = 185 (3e-12 a bit); a fixed bit fails."""
    drawn = []
    monkeypatch.setattr(FixedBasePowers, "power", lambda self, exponent: drawn.append(exponent) or gmpy2.mpz(1))
    compute_encryptions_of_zero(PUBLIC, 2800, randomness)
    length = exponent_bits(PUBLIC.bits, randomness)

    def uniform(exponents):
        ones = np.array([[e >> i & 1 for i in range(length)] for e in exponents]).sum(axis=0)
        return bool((np.abs(ones - 1400) <= 185).all())

    assert all(0 <= e < 2**length for e in drawn)
    assert uniform(drawn)
    assert not uniform([e >> 1 for e in drawn])  # a bit too short


def test_randomness_is_a_power_of_the_published_base():
    powers = power_table(PUBLIC.n, PUBLIC.base, "short")
    assert powers.power(1) == gmpy2.powmod(PUBLIC.base, PUBLIC.n, SQUARE)
    assert len(powers._table) == 40  # 400 bits in digits of 10


# Randomness computed ahead


def test_a_pool_is_used_first_and_each_piece_once(monkeypatch):
    pool = RandomnessPool()
    pool.prepare(PUBLIC, "half", 5)
    ahead = set(pool._ready[PUBLIC.n, PUBLIC.base, "half"])
    assert pool.ready(PUBLIC, "half") == len(ahead) == 5
    made = []

    def count_made(*arguments):
        made.append(arguments[1])
        return compute_encryptions_of_zero(*arguments)

    monkeypatch.setattr(
        pool_module, "compute_encryptions_of_zero", lambda *a: made.append(a[1]) or compute_encryptions_of_zero(*a)
    )
    first, second = pool.take(PUBLIC, "half", 3), pool.take(PUBLIC, "half", 4)
    assert set(first) | set(second[:2]) == ahead
    assert len({*first, *second}) == 7
    assert made == [0, 2]  # the rest is made when it is needed
    assert pool.ready(PUBLIC, "half") == 0


def test_a_stock_knows_its_key_and_kind():
    pool, other = RandomnessPool(), generate(512)
    pool.prepare(PUBLIC, "half", 3)
    assert pool.ready(other.public, "half") == pool.ready(PUBLIC, "short") == 0
    assert cipher.decrypt(other, cipher.encrypt(other.public, [9], "half", pool)) == [9]
    assert pool.ready(PUBLIC, "half") == 3
    pool.prepare(PUBLIC, "half", 2)  # enough is there
    assert pool.ready(PUBLIC, "half") == 3


def test_encryption_from_a_stock_is_encryption():
    pool = RandomnessPool()
    pool.prepare(PUBLIC, "short", 2)
    values = [0, 5, PUBLIC.n - 1]
    assert cipher.decrypt(SMALL, cipher.encrypt(PUBLIC, values, "short", pool)) == values


# By `__reduce__`, which is also how a worker process would get one: randomness that two processes share is used twice.
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copied_stock_is_empty(duplicate):
    pool = RandomnessPool()
    pool.prepare(PUBLIC, "half", 2)
    assert duplicate(pool).ready(PUBLIC, "half") == 0
    assert pool.ready(PUBLIC, "half") == 2


def test_a_forked_process_has_an_empty_stock():
    pool = RandomnessPool()
    pool.prepare(PUBLIC, "half", 2)
    child = os.fork()
    if not child:
        os._exit(pool.ready(PUBLIC, "half"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pool.ready(PUBLIC, "half") == 2


# Worker processes


def test_workers_make_randomness_of_their_own():
    with closing(randomness_workers.RandomnessWorkers(2)) as two:
        out = [
            two.encryptions_of_zero(PUBLIC, count, randomness)
            for randomness in ("half", "short")
            for count in (0, 1, 7)
        ]
    assert [len(pieces) for pieces in out] == [0, 1, 7] * 2
    every = [piece for pieces in out for piece in pieces]
    assert cipher.decrypt(SMALL, every) == [0] * 16
    assert len(set(every)) == 16


def test_a_worker_that_ended_is_named():
    with closing(randomness_workers.RandomnessWorkers(1)) as one:
        one._processes[0].kill()
        one._processes[0].wait()  # then no process reads, and unflushed bytes are still there at close
        with pytest.raises(randomness_workers.WorkerError, match="ended early"):
            one.encryptions_of_zero(PUBLIC, 3, "half")
            one.encryptions_of_zero(PUBLIC, 3, "half")


def test_workers_are_used_where_they_pay(monkeypatch):
    assert not randomness_workers.workers_pay(2048, 1024, 10**6, cores=1, started=True)
    assert not randomness_workers.workers_pay(
        2048, 400, 1587, cores=2, started=False
    )  # 1e5 values: half a second in all
    assert randomness_workers.workers_pay(2048, 400, 1587, cores=2, started=True)
    assert randomness_workers.workers_pay(
        2048, 1024, 15873, cores=2, started=False
    )  # 1e6 values, randomness of half length
    assert not randomness_workers.workers_pay(2048, 400, 10, cores=64, started=True)
    asked = []

    class Fake:
        def encryptions_of_zero(self, public, count, randomness):
            asked.append((count, randomness))
            return compute_encryptions_of_zero(public, count, randomness)

    monkeypatch.setattr(pool_module, "shared_workers", lambda bits, exponent, count: Fake() if count > 3 else None)
    assert (
        cipher.decrypt(SMALL, encryptions_of_zero(PUBLIC, 4, "half") + encryptions_of_zero(PUBLIC, 3, "half"))
        == [0] * 7
    )
    encryptions_of_zero(PUBLIC, 5, "full")  # threads do that
    assert asked == [(4, "half")]
