"""A plan names its mask stream: sums are the same under each, and parties with different ones are in no sum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from securefed import Layout, TensorSpec
from securefed._commands.cli import app
from securefed.defenses import Session, chain, grouped, secure_aggregation
from securefed.defenses._plan import plan_digest
from securefed.defenses._secure_aggregation import SecureAggregation
from securefed.defenses._secure_aggregation.chacha_stream import STREAMS
from securefed.defenses._secure_aggregation.session import MaskingClient
from securefed.errors import AuthenticationError, ConfigError, PlanError, TermsDiffer
from securefed.parties import SumClient, SumServer, SumTerms
from tests.defenses.secure_aggregation.test_secure_aggregation_secrecy import looks_uniform
from tests.parties.helpers import play

UPDATE = {"w": np.arange(12.0).reshape(3, 4), "b": np.ones(())}
TENSORS = (("w", (4000,), 32), ("loss", (), 64), ("packed", (77,), 20))


def terms(clients: int = 4, **settings) -> SumTerms:
    return SumTerms.like(
        UPDATE, clients=clients, defense=secure_aggregation(**settings), bounds=20.0, rounds=2, base=False
    )


@pytest.mark.parametrize("drops", [{}, {"keys": [4]}, {"shares": [3]}, {"upload": [1]}, {"unmask": [0]}])
def test_the_sums_are_the_same_integers_under_both_streams_whoever_is_lost(net, drops) -> None:
    sums, uploads = {}, {}
    for name in STREAMS:
        session = net.session(range(5), tensors=TENSORS, stream=name)
        given = net.contributions(session)
        out = net.drive(session, given, drops, repack=True)
        assert out.aggregate is not None and not out.refusals
        sums[name] = out.aggregate
        uploads[name] = [body["masked/w"] for body in out.bodies("upload") if "masked/w" in body]
        wanted = net.sum(given, out.aggregate.survivors)
        assert all(np.array_equal(out.aggregate.total[tensor], value) for tensor, value in wanted.items())
    first, second = sums.values()
    assert first.survivors == second.survivors
    assert all(first.total[tensor].tobytes() == second.total[tensor].tobytes() for tensor in first.total)
    for upload in uploads["chacha20"]:
        assert looks_uniform(upload)
        assert all((upload != other).any() for other in uploads["aes-128-ctr"])


@pytest.mark.parametrize("name", STREAMS)
def test_parties_sum_under_each_stream_over_rounds_that_prepare_the_next(name: str) -> None:
    agreed = SumTerms.from_bytes(terms(stream=name).to_bytes())
    server, clients = SumServer(agreed), {i: SumClient(agreed, i) for i in range(4)}
    for _ in range(2):
        found = play(server, clients, {i: {"update": {k: v * i for k, v in UPDATE.items()}} for i in range(4)})
        assert np.array_equal(found.total["w"], 6 * UPDATE["w"])


def test_parties_with_different_streams_are_refused_by_name_and_none_is_negotiated() -> None:
    ours, theirs = terms(stream="chacha20"), terms(stream="aes-128-ctr")
    for one, other in ((ours, theirs), (theirs, ours)):
        server, client = SumServer(one), SumClient(other, 2)
        server.open()
        with pytest.raises(TermsDiffer, match="mask stream"):
            client.receive(server.outgoing[2], update=UPDATE)
        agreed = SumClient(one, 2)  # the control
        assert agreed.receive(server.outgoing[2], update=UPDATE)


def told_otherwise(told: Session) -> SecureAggregation:
    """Secure aggregation in which client 2 was told of another session than the others."""

    class Told(SecureAggregation):
        def client_open(self, session: Session, client: int) -> MaskingClient:
            return super().client_open(told if client == 2 else session, client)

    return Told()


def test_a_client_of_another_stream_is_in_no_sum_below_the_terms_too(net) -> None:
    """A server that tells one client of the other stream: the channel with it does not verify."""
    session = net.session(range(4), tensors=TENSORS, stream="chacha20")
    given = net.contributions(session)
    for name, survivors in (("chacha20", (0, 1, 2, 3)), ("aes-128-ctr", (0, 1, 3))):
        told = replace(session, plan=net.plan(4, tensors=TENSORS, stream=name))
        out = net.drive(session, given, protocol=told_otherwise(told))
        assert out.aggregate is not None and out.aggregate.survivors == survivors
        refusals = [type(refusal) for _, refusal in out.refusals]
        assert refusals == [AuthenticationError] * (4 - len(survivors))


def test_the_name_is_in_the_digest_the_plan_and_the_terms_and_the_first_one_leaves_them_as_they_were() -> None:
    named, bare = terms(stream="chacha20"), terms()
    assert plan_digest(named.plan) != plan_digest(bare.plan)
    assert plan_digest(terms(stream="aes-128-ctr").plan) == plan_digest(bare.plan)
    assert named.digest != bare.digest
    assert "mask stream: chacha20" in str(named.plan).splitlines()
    assert "mask stream: aes-128-ctr" in str(bare.plan).splitlines()
    assert b"stream" not in bare.to_bytes()
    assert "stream" not in repr(bare.defense)
    assert SumTerms.from_bytes(named.to_bytes()) == named
    assert SumTerms.from_bytes(bare.to_bytes()).digest == bare.digest
    assert "stream=chacha20" in str(secure_aggregation(stream="chacha20"))


def test_the_name_is_in_the_digest_of_grouped_sums() -> None:
    layout = terms().core.schema.layouts["train"]
    digests = {
        plan_digest(chain(grouped(secure_aggregation(stream=name), groups=3)).plan(layout, 12)) for name in STREAMS
    }
    assert len(digests) == 2


def test_a_plan_beyond_the_end_of_an_aes_stream_is_refused_with_what_to_do() -> None:
    """2^34 - 8 integers of 32 bits are as long as the stream; two of them say that a client sits out."""
    most = 2**34 - 8 - 2
    for entries, stream, fits in ((most, STREAMS[0], True), (most + 1, STREAMS[0], False), (2**40, "chacha20", True)):
        layout = Layout((TensorSpec("w", (entries,), 1.0, 32),))
        defense = chain(secure_aggregation(stream=stream))
        if fits:
            assert defense.plan(layout, 4).upload_bytes > 4 * entries
        else:
            with pytest.raises(PlanError, match=r"give secure_aggregation\(stream='chacha20'\)"):
                defense.plan(layout, 4)


def test_other_names_are_refused() -> None:
    for name in ("chacha", "aes-256-ctr", "", None, 3):
        with pytest.raises(ConfigError, match="stream must be one of 'aes-128-ctr', 'chacha20'"):
            secure_aggregation(stream=name)  # type: ignore[arg-type]


def test_the_command_line_takes_the_name(tmp_path) -> None:
    np.savez(tmp_path / "update.npz", w=np.ones(3))
    run = CliRunner().invoke
    shown = run(app, ["plan", "ssi", "secure_aggregation", "--defense-set", "stream=chacha20"])
    assert shown.exit_code == 0 and "mask stream: chacha20" in shown.output
    made = run(
        app,
        ["party", "terms", str(tmp_path / "terms.json"), "--like", str(tmp_path / "update.npz"), "--clients", "3",
         "--defense-set", "stream=chacha20", "--no-base", "--bound", "1"],
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    agreed = SumTerms.from_bytes((tmp_path / "terms.json").read_bytes())
    assert agreed.plan.masking is not None and agreed.plan.masking.stream == "chacha20"
    refused = run(app, ["plan", "ssi", "secure_aggregation", "--defense-set", "stream=rc4"])
    assert refused.exit_code == 2 and "'chacha20'" in refused.output
