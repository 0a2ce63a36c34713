"""What a Paillier plan says, and which parameters are refused."""

import pytest

from securefed import Layout, TensorSpec, chain
from securefed._messages import KEY_HOLDER
from securefed.defenses import Aggregation, Session, paillier
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._homomorphic import InsecurePaillier, Paillier
from securefed.errors import ConfigError, PlanError
from tests.defenses.paillier import KEY, LAYOUT, PLAN, RUN, SCHEME, Exchange, N, assert_same, contribution, plain_sum


def test_the_plan_says_what_will_happen():
    assert isinstance(SCHEME, Aggregation)
    assert PLAN.stages == ("key", "upload", "decrypt")
    assert PLAN.threshold == 3
    assert PLAN.open_to == "the server together with the key holder"
    assert any("INSECURE" in sentence for sentence in PLAN.assumptions)
    real = chain(paillier(3072, "full")).plan(LAYOUT, 10)
    assert not any("INSECURE" in sentence for sentence in real.assumptions)
    assert real.threshold == 6
    assert real.defense == "quantise + paillier(3072, full)"
    # 38 entries of 32 bits and one of 64: a ciphertext of 768 bytes each
    assert real.upload_bytes == 2 * 768


def test_each_kind_of_randomness_states_its_assumptions():
    said = {
        randomness: " ".join(chain(paillier(randomness=randomness)).plan(LAYOUT, 5).assumptions)
        for randomness in ("full", "half", "short")
    }
    assert all("composite residuosity" in text for text in said.values())
    assert "half the modulus' length (1024 bits)" in said["half"]
    assert "EXTRA: random exponents of only 400 bits" in said["short"]
    assert "exponents" not in said["full"]
    assert "EXTRA" not in said["half"]
    assert "only 448 bits" in " ".join(chain(paillier(3072, "short")).plan(LAYOUT, 5).assumptions)


def test_the_plan_says_whom_the_clients_believe_about_the_key():
    trusting = " ".join(PLAN.assumptions)
    given = " ".join(chain(InsecurePaillier(public=KEY.public)).plan(LAYOUT, N).assumptions)
    assert "the first is trusted" in trusting
    assert "given the key holder's public key at set-up" in given
    assert "the first is trusted" not in given


@pytest.mark.parametrize("bits", [512, 1024, 2047, 2050, -2048])
def test_short_keys_are_refused(bits):
    with pytest.raises(ConfigError, match="2048"):
        paillier(bits)


def test_wrong_parameters_are_refused():
    with pytest.raises(ConfigError, match="randomness"):
        paillier(randomness="quarter")
    with pytest.raises(ConfigError, match="threshold"):
        paillier(threshold=1)
    with pytest.raises(ConfigError, match="up to 3072 bits"):
        paillier(4096, "short")
    with pytest.raises(ConfigError, match="512"):
        InsecurePaillier(256)
    with pytest.raises(PlanError, match="threshold 2"):
        chain(paillier()).plan(LAYOUT, 1)
    with pytest.raises(PlanError, match="threshold 6"):
        chain(paillier(threshold=6)).plan(LAYOUT, 5)
    assert chain(paillier(threshold=5)).plan(LAYOUT, 5).threshold == 5
    with pytest.raises(PlanError, match="no bound"):
        chain(paillier()).plan(Layout((TensorSpec("x", (2,)),)), 3)


def test_a_cohort_beyond_the_plan_is_refused():
    with pytest.raises(ConfigError, match="exceeds the planned"):
        SCHEME.server_open(Session(RUN, 0, tuple(range(N + 1)), PLAN))


def test_a_64_bit_ring_for_every_tensor():
    defence = chain(Quantise(64), SCHEME)
    plan = defence.plan(LAYOUT, N)
    encoded = {c: defence.encode(contribution(c), plan) for c in range(N)}
    assert_same(Exchange(plan=plan, encoded=encoded).run(), plain_sum(range(N), encoded, plan))


def test_each_helper_has_a_key_of_its_own():
    first, second = SCHEME.helper(N), SCHEME.helper(N)
    assert first.party == KEY_HOLDER
    assert first.public.n != second.public.n
    assert Paillier().helper(N).public.bits == 2048
