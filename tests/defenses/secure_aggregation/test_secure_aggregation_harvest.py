"""A server that harvests shares: it says different things to different clients, or asks twice. Each attack succeeds
where the check or the threshold that stops it is taken away."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from securefed import SERVER, Message
from securefed.defenses import Identities, secure_aggregation
from securefed.defenses._secure_aggregation import SecureAggregation, masks, primitives
from securefed.defenses._secure_aggregation.primitives import FIELD
from securefed.defenses._secure_aggregation.session import MASK_KEY, SEED
from securefed.errors import ContradictionError, PlanError

COHORT, VICTIM, COLLUDER = (0, 1, 2, 3, 4), 2, 4
TENSORS = (("w", (50,), 32),)
IDENTITIES = Identities.generate(100)


class Harvester:
    """An exchange up to the unmasking, the server's state with it, and what it collects of the victim's secrets."""

    def __init__(self, net, threshold=None, **options) -> None:
        self.session = net.session(COHORT, tensors=TENSORS, threshold=threshold, **options)
        self.contributions = net.contributions(self.session)
        uploads = net.drive(self.session, self.contributions, adversary=self._keep)
        self.upload = uploads.bodies("upload", sender=VICTIM)[0]["masked/w"]
        self.server = uploads.server
        self.found: dict[int, dict[int, np.ndarray]] = {SEED: {}, MASK_KEY: {}}

    def _keep(self, state):
        self.__dict__.setdefault("states", {})
        if state.stage == "unmask":
            self.states[state.client] = state  # what a client holds after its upload
        return state

    def ask(self, client, dead, state=None):
        """One client's answer to "these are dead, the others alive"; its new state."""
        alive = np.asarray([c for c in COHORT if c not in dead], np.int64)
        body = {"alive": alive, "dead": np.asarray(sorted(dead), np.int64)}
        session = self.session
        sealed = primitives.seal(
            self.server.channels[client], session.run, session.round, "unmask", SERVER, client, body
        )
        request = Message(session.run, session.round, "unmask", SERVER, client, sealed)
        new, reply = SecureAggregation().client_step(state or self.states[client], request, None)
        self.found[MASK_KEY if VICTIM in dead else SEED][client] = reply["shares"][VICTIM]
        return new

    def collude(self, client):
        """A corrupt client gives all it holds."""
        for kind in (SEED, MASK_KEY):
            self.found[kind][client] = self.states[client].held_shares[VICTIM, kind]

    def opens(self) -> bool:
        """Whether the shares found so far open the victim's upload."""
        t = self.session.plan.masking.shares
        if min(map(len, self.found.values())) < t:
            return False
        seed, key = (
            FIELD.combine([c + 1 for c in list(held)[:t]], np.stack(list(held.values())[:t])[:, None])[0]
            for held in (self.found[SEED], self.found[MASK_KEY])
        )
        server = self.server
        exchange = server.exchange
        mask_key = primitives.private_key(key)
        applied = [masks.self_mask(seed, exchange, VICTIM)]
        for row, peer in enumerate(COHORT):
            if peer != VICTIM:
                agreement = primitives.agree(mask_key, server.mask_keys[row].tobytes(), peer)
                applied.append(masks.pair_mask(agreement, exchange, VICTIM, peer))
        flat = self.upload.copy()
        masks.apply_masks([flat], applied, remove=True)
        return bool(np.array_equal(flat.view(np.int32), self.contributions[VICTIM]["w"]))


def test_a_client_that_answered_refuses_every_other_survivor_set(net):
    """Without the check (states from before the answer) the second question gives the other half of the secrets."""
    for checked in (True, False):
        attack = Harvester(net)
        after = {client: attack.ask(client, ()) for client in COHORT if client != VICTIM}
        for client, state in after.items():
            if checked:
                for dead in ((), (VICTIM,), (0,)):
                    with pytest.raises(ContradictionError):
                        attack.ask(client, dead, state)
            else:
                attack.ask(client, (VICTIM,))
        assert attack.opens() is not checked


def test_a_client_never_gives_both_kinds_of_one_secret(net):
    """The request that would: the victim alive and dead at once. Two requests stand for the check removed (above)."""
    attack = Harvester(net)
    for client in COHORT:
        both = {"alive": np.asarray(COHORT, np.int64), "dead": np.asarray([VICTIM], np.int64)}
        session = attack.session
        sealed = primitives.seal(attack.server.channels[client], session.run, 0, "unmask", SERVER, client, both)
        with pytest.raises(ContradictionError, match="alive and dead"):
            SecureAggregation().client_step(
                attack.states[client], Message(session.run, 0, "unmask", SERVER, client, sealed), None
            )
    with pytest.raises(ContradictionError, match="names this client as dead"):
        attack.ask(VICTIM, (VICTIM,))


def split_and_collude(attack) -> bool:
    """The best split there is: the colluder answers both ways, the victim itself counts itself alive."""
    others = [c for c in COHORT if c not in (VICTIM, COLLUDER)]
    for size in range(len(others) + 1):
        for told_dead in itertools.combinations(others, size):
            attack.found = {SEED: {}, MASK_KEY: {}}
            attack.collude(COLLUDER)
            attack.ask(VICTIM, ())
            for client in others:
                attack.ask(client, (VICTIM,) if client in told_dead else ())
            if attack.opens():
                return True
    return False


def test_different_words_to_different_clients_open_an_upload_unless_the_threshold_withstands_lies(net):
    """Five clients, one colludes: at threshold 3 the split works, 2 * 3 <= 5 + 1; at 4 it does not, 2 * 4 > 5 + 1."""
    assert split_and_collude(Harvester(net, threshold=3))
    assert split_and_collude(Harvester(net))
    safe = Harvester(net, threshold=4)
    assert not split_and_collude(safe)


def test_plans_whose_threshold_does_not_withstand_lies_are_refused(net):
    with pytest.raises(PlanError, match="server that lies"):
        net.plan(5, threshold=3, adversarial=0.2, identities=IDENTITIES)
    assert net.plan(5, threshold=3, adversarial=0.2).threshold == 3
    for clients, share in [(4, 0.0), (10, 0.1), (10, 0.3), (100, 1 / 3), (100, 0.0)]:
        plan = net.plan(clients, adversarial=share, identities=IDENTITIES)
        corrupt = int(np.ceil(round(share * clients, 9)))
        assert 2 * plan.threshold > clients + corrupt >= 2 * (plan.threshold - 1)
        assert "deviate in any way" in " ".join(plan.assumptions)
    with pytest.raises(PlanError, match="leave fewer"):
        net.plan(10, adversarial=0.3, dropouts=0.4, identities=IDENTITIES)
    sparse = {"graph": "sparse", "adversarial": 0.1, "dropouts": 0.1}
    plan = net.plan(100, **sparse, identities=IDENTITIES)
    assert 2 * plan.masking.shares > plan.masking.degree + 1 + 10
    assert plan.masking.degree > net.plan(100, **sparse).masking.degree
    assert "deviate in any way" in " ".join(plan.assumptions)
    assert str(secure_aggregation(adversarial=0.1, identities=IDENTITIES)).endswith("active)")
