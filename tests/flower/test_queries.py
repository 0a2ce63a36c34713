"""`@app.query` apps behind `SecureQueries`: of the shapes of Flower's quickstart-pandas and Kaplan-Meier examples."""

from __future__ import annotations

from typing import Any

import cloudpickle
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from securefed.defenses import Identities, new_identity, public_identity, secure_aggregation
from securefed.errors import ConfigError, RoundVoid
from securefed.flower import SecureQueries, SitePolicy, secure_mod, statistics
from securefed.statistics import KaplanMeier, Mean, Quantiles, Together
from tests.flower import ordinary_app
from tests.flower.grid import LocalGrid

SITES = 4
EDGES = np.linspace(2.0, 10.0, 10)
RNG = np.random.default_rng(0)
FLOWERS = [{"sepal": RNG.uniform(4, 8, 30 + i), "petal": RNG.uniform(2, 7, 30 + i)} for i in range(SITES)]
LIVES = [{"time": np.ceil(RNG.exponential(9, 40)).clip(1, 30), "event": RNG.integers(0, 2, 40) * 1.0} for _ in range(SITES)]  # fmt: skip # noqa: E501


def histograms(message: Message, context: Any) -> Message:
    """The `@app.query` of quickstart-pandas: a list of counts for each feature that the server selects."""
    table = FLOWERS[int(context.node_config["partition-id"])]
    selected = message.content["config"]["features"]
    counts = {name: np.histogram(table[name], bins=EDGES)[0].tolist() for name in selected}
    rows = {"rows": len(table["sepal"]), "total": float(table["sepal"].sum())}
    return Message(RecordDict({"query_results": MetricRecord(counts | rows)}), reply_to=message)


def grid(query: Any = histograms, mods: Any = None, **options: Any) -> LocalGrid:
    made = ordinary_app.grid(clients=SITES)
    for node in made.nodes.values():
        app = ordinary_app.app(*([secure_mod(SitePolicy(**options))] if mods is None else mods))
        app.query()(query)
        app.query("statistic")(statistics(lambda context: LIVES[int(context.node_config["partition-id"])]))
        node.app = app
    return made


def secured(made: Any, defense: Any = None, **options: Any) -> SecureQueries:
    return SecureQueries(made, defense or secure_aggregation(), **{"poll": 0.001, "patience": 0.05} | options)


def messages(made: Any, **config: Any) -> list[Message]:
    content = RecordDict({"config": ConfigRecord({"features": ["sepal", "petal"], **config})})
    return [Message(content, node, "query", group_id="1") for node in made.get_node_ids()]


def totals(replies: Any) -> dict[str, Any]:
    """What the ServerApp of quickstart-pandas does with the replies, unchanged: it adds them up."""
    out: dict[str, Any] = {}
    for reply in replies:
        if reply.has_error():
            continue
        for name, value in reply.content["query_results"].items():
            out[name] = np.asarray(value) + out.get(name, 0)
    return out


def test_the_histograms_of_quickstart_pandas_are_those_of_the_plain_app_exactly() -> None:
    plain, made = grid(mods=[]), grid()
    theirs = totals(plain.send_and_receive(messages(plain)))
    replies = list(secured(made).send_and_receive(messages(made)))
    assert len(replies) == 1
    ours = totals(replies)
    assert set(ours) == set(theirs)
    for name in ("sepal", "petal", "rows"):
        np.testing.assert_array_equal(ours[name], theirs[name])
        assert np.asarray(ours[name]).dtype.kind == "i"
    assert ours["total"] == pytest.approx(theirs["total"], abs=1e-6)


def test_arrays_are_summed_too_and_texts_stay() -> None:
    def query(message: Message, context: Any) -> Message:
        arrays = {"counts": Array(np.arange(3) + 1), "w": Array(np.full((2, 2), 0.5, np.float32))}
        records = {"a": ArrayRecord(arrays), "own": ConfigRecord({"name": "north"})}
        return Message(RecordDict(records), reply_to=message)

    made = grid(query)
    [reply] = secured(made).send_and_receive(messages(made))
    assert list(reply.content) == ["a"]
    np.testing.assert_array_equal(reply.content["a"]["counts"].numpy(), SITES * (np.arange(3) + 1))
    assert reply.content["a"]["w"].numpy().dtype == np.float32
    np.testing.assert_allclose(reply.content["a"]["w"].numpy(), SITES * 0.5)


@pytest.mark.parametrize("change", ["another name", "another length", "too many"])
def test_replies_that_hold_different_numbers_give_an_empty_sum_and_a_warning(change: str, caplog: Any) -> None:
    def query(message: Message, context: Any) -> Message:
        reply = histograms(message, context)
        if int(context.node_config["partition-id"]) == 2:
            found = dict(reply.content["query_results"])
            found |= {
                "another name": {"extra": 1},
                "another length": {"sepal": [1, 2]},
                "too many": {"sepal": [0] * 99},
            }[change]
            reply.content["query_results"] = MetricRecord(found)
        return reply

    made = grid(query)
    [reply] = secured(made, numbers=64).send_and_receive(messages(made))
    assert dict(reply.content) == {}
    assert "hold different numbers" in caplog.text


def test_a_number_that_is_not_finite_or_beyond_the_bound_is_none_and_the_others_stay() -> None:
    def query(message: Message, context: Any) -> Message:
        odd = int(context.node_config["partition-id"]) == 1
        found = {"a": float("nan") if odd else 1.0, "b": 1e9 if odd else 1.0, "c": [1.0, float("inf") if odd else 2.0]}
        return Message(RecordDict({"m": MetricRecord(found)}), reply_to=message)

    made = grid(query)
    [reply] = secured(made).send_and_receive(messages(made))
    found = reply.content["m"]
    assert np.isnan(found["a"]) and np.isnan(found["b"])
    assert found["c"][0] == pytest.approx(SITES, abs=1e-6) and np.isnan(found["c"][1])


def test_an_app_without_secure_mod_is_refused_and_one_with_it_answers_nothing_in_the_clear() -> None:
    made = grid(mods=[])
    with pytest.raises(ConfigError, match="secure_mod"):
        secured(made).send_and_receive(messages(made))
    made = grid()
    assert all(reply.has_error() for reply in made.send_and_receive(messages(made)))
    bare = grid(mods=[])  # `statistics` without the mod
    [reply, *_] = bare.send_and_receive([Message(RecordDict(), next(iter(bare.nodes)), "query.statistic")])
    assert reply.has_error() and "under secure_mod alone" in reply.error.reason


def test_supernodes_that_were_sent_another_query_are_not_summed() -> None:
    made = grid()
    sent = messages(made)
    sent[1] = messages(made, more=1)[1]
    with pytest.raises(ConfigError, match="different messages"):
        secured(made).send_and_receive(sent)
    with pytest.raises(ConfigError, match="training and evaluation go through SecureStrategy"):
        secured(made).send_and_receive([Message(RecordDict(), 1, "train")])
    with pytest.raises(ConfigError, match="send_and_receive"):
        secured(made).push_messages([])
    assert list(secured(made).send_and_receive([])) == []


def test_a_kaplan_meier_curve_of_all_sites_and_several_statistics_in_one_exchange() -> None:
    secure = secured(grid())
    curve = KaplanMeier(times=tuple(range(2, 31, 2)), time="time", event="event", rows=100, least_events=1)
    found = secure.ask(curve)
    np.testing.assert_allclose(found.value, curve.simulate(LIVES).value, atol=1e-9)
    several = Together(
        mean=Mean(bound={"time": 30}, rows=100), median=Quantiles({"time": tuple(range(31))}, rows=100), curve=curve
    )
    assert set(secure.ask(several)) == {"mean", "median", "curve"}
    assert len({entry.exchanges for entry in secure.history}) == 1
    again = secure.ask(curve)
    np.testing.assert_array_equal(again.value, found.value)
    assert len(secure.history) == 2  # the same question is not summed twice


def test_a_lost_supernode_is_left_out_and_too_few_are_named() -> None:
    made = grid()
    gone = sorted(made.nodes)[3]
    made.lose = lambda message: message.metadata.dst_node_id == gone
    secure = secured(made)
    found = secure.ask(Mean(bound={"time": 30}, rows=100))
    assert found.survivors == (0, 1, 2) and secure.history[-1].survivors == tuple(sorted(made.nodes)[:3])
    made.lose = lambda message: message.metadata.dst_node_id != gone
    with pytest.raises(RoundVoid):
        secured(made).ask(Mean(bound={"time": 30}, rows=100))


def test_sites_refuse_by_name_what_their_policy_does_not_allow() -> None:
    with pytest.raises(ConfigError, match="at least 4 clients"):
        secured(grid(least=4)).ask(Mean(bound={"time": 30}, rows=100))


def test_an_app_without_statistics_is_named_with_what_to_write() -> None:
    made = ordinary_app.grid(secure_mod, clients=SITES)
    with pytest.raises(ConfigError, match=r'let it have @app.query\("statistic"\) with @statistics'):
        secured(made).ask(Mean(bound={"time": 30}, rows=100))
    for wrong in ({"nodes": 0}, {"bound": -1.0}, {"numbers": 0}):
        with pytest.raises(ConfigError):
            secured(made, **wrong)
    with pytest.raises(ConfigError, match="ask takes a statistic"):
        secured(made).ask(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("announces", [False, True])
def test_a_site_whose_rows_cannot_be_summed_makes_the_sum_void_or_announces_it(announces: bool, caplog: Any) -> None:
    made = grid()
    odd = made.nodes[sorted(made.nodes)[0]]
    odd.app = ordinary_app.app(secure_mod(SitePolicy(announce_errors=announces)))
    odd.app.query("statistic")(statistics(lambda _: {"time": np.array([1.0, 99.0] * 20)}))
    statistic = Mean(bound={"time": 30}, rows=100)
    if announces:
        assert secured(made).ask(statistic).survivors == (1, 2, 3)
    else:
        with pytest.raises(RoundVoid, match="announce_errors=True"):
            secured(made).ask(statistic)
    assert "beyond what was declared" in caplog.text  # in the log of the site


def test_sites_with_identities_take_the_numbers_that_they_are_pinned_to() -> None:
    keys = {i: new_identity() for i in range(SITES)}
    public = {i: public_identity(key) for i, key in keys.items()}
    made = grid()
    for number, node in enumerate(made.nodes.values()):
        party = SITES - 1 - number
        policy = SitePolicy(party=party, identity=keys[party], identities=public)
        node.app = ordinary_app.app(secure_mod(policy))
        node.app.query("statistic")(statistics(lambda context: LIVES[int(context.node_config["partition-id"])]))
    secure = secured(made, secure_aggregation(identities=Identities(public)))
    statistic = Mean(bound={"time": 30}, rows=100)
    np.testing.assert_allclose(secure.ask(statistic).value, statistic.simulate(LIVES).value, atol=1e-9)


def test_rows_see_no_run_config() -> None:
    seen: list[Any] = []
    made = grid()
    for node in made.nodes.values():
        node.begin({"rate": 0.1})
        node.app = ordinary_app.app(secure_mod)

        @node.app.query("statistic")
        @statistics
        def rows(context: Any) -> Any:
            seen.append((dict(context.run_config), list(context.state)))
            return LIVES[int(context.node_config["partition-id"])]

    SecureQueries(made, secure_aggregation(), {"rate": 0.1}, poll=0.001, patience=0.05).ask(
        Mean(bound={"time": 30}, rows=100)
    )
    assert seen == [({}, [])] * SITES
    with pytest.raises(ConfigError, match="run's config"):
        secured(made).ask(Mean(bound={"time": 29.5}, rows=100))


def test_an_app_can_be_pickled_by_value_as_the_simulation_engine_does() -> None:
    """Ray sends the app to its processes; a context variable in a closure of ours was refused there."""

    def rows(context: Any) -> Any:
        return LIVES[0]

    app = ordinary_app.app(secure_mod)
    app.query("statistic")(statistics(rows))
    assert cloudpickle.loads(cloudpickle.dumps(app)) is not None
