"""What is changed on its way is refused by name, and a third party adds up what was sent again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from securefed import SERVER, Message
from securefed.defenses import Identities
from securefed.errors import ContradictionError, MalformedError, MessageRefused
from tests.defenses.one_message.play import (
    IDENTITIES,
    RUN,
    STAGES,
    Play,
    changing,
    check_exact,
    protocol,
    reached,
)

# --- tampering on the way --------------------------------------------------------------------------------------------


def flip(name: str) -> Any:
    """Change one bit of a field."""

    def change(body: dict[str, Any]) -> None:
        flat = body[name].reshape(-1).view(np.uint8)
        flat[flat.size // 2] ^= 1

    return change


def fields_of(direction: str) -> list[tuple[str, str]]:
    """All fields of all messages to or from member 0, who is a client as well."""
    seen: list[tuple[str, str]] = []

    def note(message: Message) -> Message:
        if 0 in (message.sender, message.receiver):
            seen.extend((message.stage, name) for name in message.body if (message.stage, name) not in seen)
        return message

    Play(**{direction: note}).run()
    return seen


def test_the_tampering_below_reaches_every_field() -> None:
    assert {stage for stage, _ in fields_of("request")} == set(STAGES) - {"keys"}
    assert {stage for stage, _ in fields_of("reply")} == set(STAGES)


@pytest.mark.parametrize("direction", ["request", "reply"])
def test_a_bit_that_is_changed_on_the_way_costs_its_party_and_never_the_sum(direction: str) -> None:
    """Field by field. The control without a change is in every other test."""
    for stage, name in fields_of(direction):
        play = Play(**{direction: changing(stage, (0,), flip(name))})
        found = play.run()
        check_exact(found, play.plan)
        assert 0 in play.refused or 0 in found.left_out, (stage, name)
        assert (0 in found.survivors) == (stage != "upload"), (stage, name)


def test_another_type_or_shape_of_any_field_is_refused() -> None:
    def longer(name: str) -> Any:
        return lambda body: body.update({name: np.concatenate([body[name], body[name]])})

    def wider(name: str) -> Any:
        return lambda body: body.update({name: body[name].astype(np.float64)})

    def gone(name: str) -> Any:
        return lambda body: body.pop(name)

    for direction in ("request", "reply"):
        for place, (stage, name) in enumerate(fields_of(direction)):
            change = (longer, wider, gone)[place % 3]
            play = Play(**{direction: changing(stage, (0,), change(name))})
            check_exact(play.run(), play.plan)
            assert isinstance(play.refused[0], MalformedError | ContradictionError), (stage, name, change)


def test_a_forged_refusal_is_not_taken_for_a_partys_own() -> None:
    play, state, _ = reached("upload")
    own = play.aggregation.client_refusal(play.clients[0], {"why": np.zeros(3, np.uint8)}, play.number)
    refusal = Message(RUN, play.number, "refusal", 0, SERVER, own)
    play.aggregation.server_refusal(state, refusal)
    for forged in (
        replace(refusal, body={"why": np.zeros(3, np.uint8)}),
        replace(refusal, body={**own, "why": np.ones(3, np.uint8)}),
        replace(refusal, sender=1),
    ):
        with pytest.raises(MessageRefused):
            play.aggregation.server_refusal(state, forged)


# --- adding up again -------------------------------------------------------------------------------------------------


def test_a_third_party_adds_up_the_signed_uploads_again() -> None:
    play = Play()
    found = play.run()
    public = replace(protocol(), identities=Identities(IDENTITIES.public))
    again = public.recount(play.session, play.replies)
    assert again.survivors == found.survivors
    for name, value in found.total.items():
        assert np.array_equal(again.total[name], value)


def test_a_third_party_notices_another_upload_another_set_and_another_context() -> None:
    play = Play()
    play.run()
    public = replace(protocol(), identities=Identities(IDENTITIES.public))
    without = [reply for reply in play.replies if (reply.stage, reply.sender) != ("upload", 6)]
    for session, replies in (
        (play.session, without),
        (replace(play.session, context=b"d" * 32), play.replies),
        (replace(play.session, round=play.number + 1), play.replies),
        (play.session, [*play.replies, play.replies[-1]]),
    ):
        with pytest.raises(MessageRefused):
            public.recount(session, replies)
    with pytest.raises(MessageRefused):
        public.recount(play.session, [changing("upload", (3,), flip("low"))(reply) for reply in play.replies])
