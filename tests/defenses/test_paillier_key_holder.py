"""The Paillier key holder: one decryption an exchange, for enough survivors."""

from dataclasses import replace

import numpy as np
import pytest

from securefed import SERVER, Dataset, Federation, Message, chain
from securefed import _catalogue as catalogue
from securefed._messages import KEY_HOLDER
from securefed.defenses import KeyHolder, ckks
from securefed.defenses._homomorphic import InsecurePaillier, cipher
from securefed.errors import BindingError, ContradictionError, MalformedError
from tests.defenses.paillier import KEY, LAYOUT, RUN, Exchange, contribution, n2


def decryption(number=0, **changes):
    (c,) = cipher.encrypt(KEY.public, [41])
    body = {"ciphertexts": cipher.to_wire([c], 128), "survivors": np.asarray(3, np.int64)}
    return Message(RUN, number, "decrypt", SERVER, KEY_HOLDER, body | changes)


def asked(number=0, **kwargs):
    holder = KeyHolder(KEY, **kwargs)
    holder.handle(Message(RUN, number, "key", SERVER, KEY_HOLDER, {}))
    return holder


def test_the_key_holder_decrypts_once_an_exchange():
    holder = asked()
    assert int.from_bytes(holder.handle(decryption())["plaintexts"].tobytes(), "little") == 41
    with pytest.raises(ContradictionError, match="decrypted before"):
        holder.handle(decryption())
    with pytest.raises(ContradictionError, match="replay"):
        holder.handle(Message(RUN, 0, "key", SERVER, KEY_HOLDER, {}))
    with pytest.raises(ContradictionError):
        holder.handle(decryption(1))  # its key was not asked for
    holder.handle(Message(RUN, 1, "key", SERVER, KEY_HOLDER, {}))
    with pytest.raises(ContradictionError):
        holder.handle(decryption(0))  # an older exchange
    assert int.from_bytes(holder.handle(decryption(1))["plaintexts"].tobytes(), "little") == 41
    with pytest.raises(ContradictionError):
        holder.handle(Message(RUN, 0, "key", SERVER, KEY_HOLDER, {}))


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"survivors": np.asarray(1, np.int64)}, ContradictionError),
        ({"survivors": np.asarray(-5, np.int64)}, ContradictionError),
        ({"survivors": np.asarray(3.0)}, MalformedError),
        ({"survivors": np.asarray([3])}, MalformedError),
        ({"ciphertexts": cipher.to_wire([0], 128)}, MalformedError),
        ({"ciphertexts": cipher.to_wire([n2], 128)}, MalformedError),
        ({"ciphertexts": cipher.to_wire([KEY.phe.p], 128)}, MalformedError),
        ({"ciphertexts": cipher.to_wire([5], 127)}, MalformedError),
        ({"ciphertexts": np.zeros((1, 128))}, MalformedError),
        ({"more": np.zeros(1)}, MalformedError),
    ],
)
def test_a_malformed_request_is_refused_and_does_not_use_up_the_exchange(changes, kind):
    holder = asked()
    with pytest.raises(kind) as caught:
        holder.handle(decryption(**changes))
    assert caught.value.sender == SERVER
    assert int.from_bytes(holder.handle(decryption())["plaintexts"].tobytes(), "little") == 41


def test_the_key_holder_has_a_threshold_and_answers_the_server_alone():
    with pytest.raises(ContradictionError, match="needs 4"):
        asked(threshold=4).handle(decryption())
    assert asked(threshold=3).handle(decryption())
    with pytest.raises(ContradictionError, match="needs 2"):
        asked(threshold=1).handle(decryption(survivors=np.asarray(1, np.int64)))
    for changes in ({"sender": 2}, {"receiver": 1}):
        with pytest.raises(BindingError):
            asked().handle(replace(decryption(), **changes))
    with pytest.raises(ContradictionError, match="no stage"):
        asked().handle(replace(decryption(), stage="upload"))
    with pytest.raises(MalformedError):
        KeyHolder(KEY).handle(Message(RUN, 0, "key", SERVER, KEY_HOLDER, {"x": np.zeros(1)}))


@pytest.mark.parametrize("scheme", [InsecurePaillier(), InsecurePaillier(threshold=3), ckks()])
@pytest.mark.parametrize("frozen", [False, True])
def test_the_holder_of_a_plan_needs_that_plans_survivors(scheme, frozen):
    """A server that asks for two survivors' sum, where the plan says three of four: it was opened before."""
    plan = chain(scheme).plan(LAYOUT, 4)
    encoded = {c: chain(scheme).encode(contribution(c), plan) for c in range(4)}
    holder = scheme.helper(4)
    if frozen:
        holder = scheme.helper(4, holder.freeze())
    greedy = {"scheme": scheme, "plan": replace(plan, threshold=2), "encoded": encoded, "holder": holder}
    assert plan.threshold == 3
    with pytest.raises(ContradictionError, match="for 2 survivors, the key holder needs 3, as the plan does"):
        Exchange(**greedy, lose=lambda stage, party: stage == "upload" and party > 1).run()
    three = Exchange(**greedy, number=1, lose=lambda stage, party: stage == "upload" and party > 2).run()
    assert three.survivors == (0, 1, 2)  # positive control


def test_the_holder_of_a_federation_needs_the_survivors_of_its_cohorts():
    rows = [Dataset(np.eye(3), np.arange(3) % 2) for _ in range(12)]
    algorithm = catalogue.algorithms.make("optimization/dsgd", learning_rate=0.1)
    federation = Federation(algorithm, rows, chain(InsecurePaillier()), cohort=10)
    assert federation.helper._threshold == federation.plan.threshold == 6


def test_a_holder_of_the_same_key_for_other_runs_has_a_threshold_of_its_own():
    first = asked(threshold=4)
    second = first.requiring(3)
    assert second.public == first.public
    with pytest.raises(ContradictionError, match="not the one that asked"):
        second.handle(decryption())
    second.handle(Message(RUN, 0, "key", SERVER, KEY_HOLDER, {}))
    assert second.handle(decryption())
    with pytest.raises(ContradictionError, match="needs 4"):
        first.handle(decryption())
