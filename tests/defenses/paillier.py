"""One Paillier exchange with all parties, hand-fed its messages, and ways to tamper with it."""

from dataclasses import replace

import numpy as np

from securefed import SERVER, Aggregate, Layout, Message, TensorSpec, chain
from securefed._messages import KEY_HOLDER
from securefed._persistence.packing import pack, restore
from securefed.defenses import KeyHolder, Plain, Session, UploadContext
from securefed.defenses._homomorphic import InsecurePaillier, cipher, generate, threshold_cipher
from securefed.defenses._homomorphic.packing import Packing
from securefed.errors import MessageRefused

RUN = "0123456789abcdef" * 2
KEY = generate(512)
LAYOUT = Layout((TensorSpec("w", (5, 7), 1.3), TensorSpec("b", (), 4.0, 64), TensorSpec("c", (3,), 100.0)))
N = 4
SCHEME = InsecurePaillier()
DEFENCE = chain(SCHEME)
PLAN = DEFENCE.plan(LAYOUT, N)


def contribution(seed):
    rng = np.random.default_rng(seed)
    return {s.name: rng.uniform(-s.bound, s.bound, s.shape) for s in LAYOUT}


ENCODED = {client: DEFENCE.encode(contribution(client), PLAN) for client in range(N)}


def open_together(keys, body, plan):
    """Open one client's upload with the shares in `keys`, as their holders can together; `None` for fewer than t."""
    shared, packing = keys.shared, Packing.of(plan, keys.shared.public.bits)
    ciphertexts = cipher.from_wire(body["ciphertexts"], packing.plaintexts, shared.public.ciphertext_bytes, SERVER)
    quorum = sorted(keys.shares)[: shared.threshold]
    partials = {holder: threshold_cipher.partial(shared, keys.shares[holder], ciphertexts) for holder in quorum}
    plaintexts = threshold_cipher.combine(shared, ciphertexts, partials)
    return None if plaintexts is None else packing.unpack(plaintexts, 1, SERVER)


def wire(message):
    return Message.decode(message.encode())


class Exchange:
    """All parties of one exchange. `lose(stage, party)` loses a reply; `through` alters a message on its way.

    A client whose contribution is `None` sits out. `contexts` tells single clients something else than the server's
    session does. States are packed and restored at every step, and between request and upload.
    """

    def __init__(
        self, *, scheme=SCHEME, number=0, holder=None, lose=None, through=None, plan=PLAN, encoded=None, contexts=None
    ):
        self.scheme, self.holder = scheme, holder or KeyHolder(KEY)
        self.session = Session(RUN, number, tuple(range(plan.clients)), plan, b"told to all".ljust(32))
        self.contexts = contexts or {}
        self.encoded = ENCODED if encoded is None else encoded
        self.lose = lose or (lambda stage, party: False)
        self.through = through or (lambda message: message)
        self.clients = {c: scheme.client_open(self.session, c) for c in self.session.cohort}
        self.recorded, self.refused = [], {}

    def run(self):
        state, stage, bodies = self.scheme.server_open(self.session)
        while True:
            replies = {party: self.answer(stage, party, body) for party, body in bodies.items()}
            replies = {p: reply for p, reply in replies.items() if reply is not None and not self.lose(stage, p)}
            step = self.step(restore(self.scheme.server_open(self.session)[0], pack(state)), replies)
            if isinstance(step, Aggregate):
                return step
            state, stage, bodies = step

    def step(self, state, replies):
        while True:
            try:
                return self.scheme.server_step(state, replies)
            except MessageRefused as error:
                self.refused[error.sender] = error
                del replies[error.sender]

    def answer(self, stage, party, body):
        """The reply; `None`, a dropout, where a client refuses its request."""
        try:
            return self.ask(stage, party, body)
        except MessageRefused as error:
            if party == KEY_HOLDER:
                raise
            self.refused[party] = error
            return None

    def ask(self, stage, party, body):
        request = self.through(wire(Message(RUN, self.session.round, stage, SERVER, party, body)))
        self.recorded.append(request)
        if party == KEY_HOLDER:
            reply = self.holder.handle(request)
        else:
            template = self.scheme.client_open(self.session, party)
            state = restore(template, pack(self.clients[party]))
            if stage == self.scheme.upload:
                told = UploadContext(self.contexts.get(party, self.session.context), b"")
                state = restore(template, pack(self.scheme.client_accept(state, request, told)))
                self.clients[party], reply = self.scheme.client_upload(state, self.encoded[party])
            else:
                self.clients[party], reply = self.scheme.client_step(state, request, None)
        message = self.through(wire(Message(RUN, self.session.round, stage, party, SERVER, reply)))
        self.recorded.append(message)
        return message


def plain_sum(survivors, encoded=ENCODED, plan=PLAN):
    session = Session(RUN, 0, tuple(range(plan.clients)), plan)
    state, stage, _ = Plain().server_open(session)
    return Plain().server_step(state, {c: Message(RUN, 0, stage, c, SERVER, encoded[c]) for c in survivors})


def assert_same(left, right):
    assert left.survivors == right.survivors
    assert set(left.total) == set(right.total)
    for name, value in left.total.items():
        assert value.dtype == right.total[name].dtype == np.int64
        assert value.shape == right.total[name].shape
        np.testing.assert_array_equal(value, right.total[name])


def tamper(stage, sender, change):
    def through(message):
        if message.stage == stage and message.sender == sender:
            return replace(message, body=change(dict(message.body)))
        return message

    return through


def with_number(position, value):
    def change(body):
        rows = body["ciphertexts"].copy()
        rows[position] = np.frombuffer(int(value).to_bytes(128, "little"), np.uint8)
        return body | {"ciphertexts": rows}

    return change


n2 = KEY.public.n**2
