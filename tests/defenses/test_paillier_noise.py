"""Paillier noise: encryptions of zero, exponents of the stated length, never twice, by workers as by oneself."""

import copy
import os

import gmpy2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed.defenses.homomorphic import Stock, cipher, generate, workers
from securefed.defenses.homomorphic import noise as noise_module
from securefed.defenses.homomorphic.noise import NOISES, FixedBase, exponent_bits, make, noises, table
from securefed.errors import ConfigError

SMALL = generate(512)
PUBLIC = SMALL.public
SQUARE = gmpy2.mpz(PUBLIC.n) ** 2


@pytest.mark.parametrize("noise", NOISES)
def test_noise_encrypts_zero_and_no_piece_comes_twice(noise):
    out = noises(PUBLIC, 64, noise)
    assert cipher.decrypt(SMALL, out) == [0] * 64
    assert len(set(out)) == 64
    assert 1 not in out


@pytest.mark.parametrize("noise", NOISES)
def test_ciphertexts_of_one_plaintext_are_all_different(noise):
    out = cipher.encrypt(PUBLIC, [7] * 64, noise)
    assert len(set(out)) == 64
    # A ciphertext without noise would be 1 + 7 n: none is.
    assert (1 + 7 * PUBLIC.n) not in out


# Powers


@pytest.mark.parametrize("base", [3, PUBLIC.n + 1, PUBLIC.n**2 - 2], ids=["3", "n + 1", "n^2 - 2"])
@pytest.mark.parametrize(("bits", "width"), [(64, 8), (64, 10), (13, 5), (7, 9), (1, 1)])
@given(data=st.data())
def test_table_of_powers_agrees_with_pow(base, bits, width, data):
    exponent = data.draw(st.sampled_from([0, 1, 2**bits - 1]) | st.integers(0, 2**bits - 1))
    assert FixedBase(gmpy2.mpz(base), PUBLIC.n, bits, width).power(exponent) == pow(base, exponent, int(SQUARE))


@pytest.mark.parametrize(
    ("bits", "noise", "length"),
    [(2048, "half", 1024), (2048, "short", 400), (3072, "half", 1536), (3072, "short", 448), (2048, "full", 2048)],
)
def test_lengths_of_exponents(bits, noise, length):
    assert exponent_bits(bits, noise) == length


def test_short_noise_is_refused_where_no_length_is_settled():
    with pytest.raises(ConfigError, match=r"3072 bits, not 4096.*half"):
        exponent_bits(4096, "short")


@pytest.mark.parametrize("noise", ["half", "short"])
def test_exponents_are_uniform_over_their_whole_length(noise, monkeypatch):
    """Every bit is set in half of 2800 exponents: |ones - 1400| <= 7 sd = 185 (3e-12 a bit); a fixed bit fails."""
    drawn = []
    monkeypatch.setattr(FixedBase, "power", lambda self, exponent: drawn.append(exponent) or gmpy2.mpz(1))
    make(PUBLIC, 2800, noise)
    length = exponent_bits(PUBLIC.bits, noise)

    def uniform(exponents):
        ones = np.array([[e >> i & 1 for i in range(length)] for e in exponents]).sum(axis=0)
        return bool((np.abs(ones - 1400) <= 185).all())

    assert all(0 <= e < 2**length for e in drawn)
    assert uniform(drawn)
    assert not uniform([e >> 1 for e in drawn])  # a bit too short


def test_noise_is_a_power_of_the_published_base():
    powers = table(PUBLIC.n, PUBLIC.base, "short")
    assert powers.power(1) == gmpy2.powmod(PUBLIC.base, PUBLIC.n, SQUARE)
    assert powers.products == 40  # 400 bits in digits of 10


# Noise made ahead


def test_a_stock_is_used_first_and_each_piece_once(monkeypatch):
    stock = Stock()
    stock.prepare(PUBLIC, "half", 5)
    ahead = set(stock._ready[PUBLIC.n, PUBLIC.base, "half"])
    assert stock.ready(PUBLIC, "half") == len(ahead) == 5
    made = []
    monkeypatch.setattr(noise_module, "make", lambda *a: made.append(a[1]) or make(*a))
    first, second = stock.take(PUBLIC, "half", 3), stock.take(PUBLIC, "half", 4)
    assert set(first) | set(second[:2]) == ahead
    assert len({*first, *second}) == 7
    assert made == [0, 2]  # the rest is made when it is needed
    assert stock.ready(PUBLIC, "half") == 0


def test_a_stock_knows_its_key_and_kind():
    stock, other = Stock(), generate(512)
    stock.prepare(PUBLIC, "half", 3)
    assert stock.ready(other.public, "half") == stock.ready(PUBLIC, "short") == 0
    assert cipher.decrypt(other, cipher.encrypt(other.public, [9], "half", stock)) == [9]
    assert stock.ready(PUBLIC, "half") == 3
    stock.prepare(PUBLIC, "half", 2)  # enough is there
    assert stock.ready(PUBLIC, "half") == 3


def test_encryption_from_a_stock_is_encryption():
    stock = Stock()
    stock.prepare(PUBLIC, "short", 2)
    values = [0, 5, PUBLIC.n - 1]
    assert cipher.decrypt(SMALL, cipher.encrypt(PUBLIC, values, "short", stock)) == values


# By `__reduce__`, which is also how a worker process would get one: noise that two processes share is used twice.
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copied_stock_is_empty(duplicate):
    stock = Stock()
    stock.prepare(PUBLIC, "half", 2)
    assert duplicate(stock).ready(PUBLIC, "half") == 0
    assert stock.ready(PUBLIC, "half") == 2


def test_a_forked_process_has_an_empty_stock():
    stock = Stock()
    stock.prepare(PUBLIC, "half", 2)
    child = os.fork()
    if not child:
        os._exit(stock.ready(PUBLIC, "half"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert stock.ready(PUBLIC, "half") == 2


# Worker processes


def test_workers_make_noise_of_their_own():
    with workers.Workers(2) as two:
        out = [two.noises(PUBLIC, count, noise) for noise in ("half", "short") for count in (0, 1, 7)]
    assert [len(pieces) for pieces in out] == [0, 1, 7] * 2
    every = [piece for pieces in out for piece in pieces]
    assert cipher.decrypt(SMALL, every) == [0] * 16
    assert len(set(every)) == 16


def test_a_worker_that_ended_is_named():
    with workers.Workers(1) as one:
        one._processes[0].kill()
        one._processes[0].wait()  # then nobody reads, and what was not flushed is still there when it is closed
        with pytest.raises(workers.WorkerError, match="ended early"):
            one.noises(PUBLIC, 3, "half")
            one.noises(PUBLIC, 3, "half")


def test_workers_are_used_where_they_pay(monkeypatch):
    assert not workers.pays(2048, 1024, 10**6, cores=1, started=True)
    assert not workers.pays(2048, 400, 1587, cores=2, started=False)  # 1e5 values: half a second in all
    assert workers.pays(2048, 400, 1587, cores=2, started=True)
    assert workers.pays(2048, 1024, 15873, cores=2, started=False)  # 1e6 values, noise of half length
    assert not workers.pays(2048, 400, 10, cores=64, started=True)
    asked = []

    class Fake:
        def noises(self, public, count, noise):
            asked.append((count, noise))
            return make(public, count, noise)

    monkeypatch.setattr(noise_module, "shared", lambda bits, exponent, count: Fake() if count > 3 else None)
    assert cipher.decrypt(SMALL, noises(PUBLIC, 4, "half") + noises(PUBLIC, 3, "half")) == [0] * 7
    noises(PUBLIC, 5, "full")  # threads do that
    assert asked == [(4, "half")]
