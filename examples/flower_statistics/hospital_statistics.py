"""A Flower app without rounds: histograms of an app's own, a table 1, a survival curve and a regression."""

import json
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from securefed.defenses import secure_aggregation
from securefed.flower import SecureQueries, secure_mod, statistics
from securefed.statistics import ContingencyTable, KaplanMeier, LogisticModel, Mean, Quantiles, Together, Variance

client = ClientApp(mods=[secure_mod])
server = ServerApp()
BINS = np.linspace(0, 120, 13)


def patients(context: Context) -> dict[str, np.ndarray]:
    """The rows of one site, here drawn: a real one reads its own, `read_table(context.node_config["rows"])`."""
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    age, dose = rng.normal(60, 12, 200).clip(0, 120), rng.uniform(0, 5, 200)
    ill = rng.random(200) < 1 / (1 + np.exp(3 - 0.05 * age + 0.4 * dose))
    return {
        "age": age, "dose": dose, "ward": rng.choice(["icu", "surgery"], 200), "readmitted": ill * 1.0,
        "months": np.ceil(rng.exponential(np.where(ill, 12, 30))).clip(1, 60), "died": rng.integers(0, 2, 200) * 1.0,
    }  # fmt: skip


@client.query()
def histograms(message: Message, context: Context) -> Message:
    """As in Flower's quickstart-pandas: a list of counts for each column that the server selects."""
    table = patients(context)
    counts = {name: np.histogram(table[name], BINS)[0].tolist() for name in message.content["config"]["columns"]}
    return Message(RecordDict({"query_results": MetricRecord(counts)}), reply_to=message)


client.query("statistic")(statistics(patients))


@server.main()
def main(grid: Grid, context: Context) -> None:
    secure = SecureQueries(grid, secure_aggregation(), context.run_config)
    asked = RecordDict({"config": ConfigRecord({"columns": ["age", "dose"]})})
    found = {}
    for reply in secure.send_and_receive([Message(asked, node, "query") for node in secure.get_node_ids()]):
        found |= {f"histogram of {name}": counts for name, counts in reply.content["query_results"].items()}

    bounds = {"age": (0, 120), "dose": (0, 5)}
    table = secure.ask(
        Together(
            mean=Mean(bound=bounds, rows=500), variance=Variance(bound=bounds, rows=500),
            median=Quantiles({"age": tuple(range(121))}, rows=500),
            wards=ContingencyTable({"ward": ("icu", "surgery")}, rows=500),
            survival=KaplanMeier(time="months", event="died", times=tuple(range(6, 61, 6)), rows=500),
        )
    )  # fmt: skip
    fitted = LogisticModel(bound=bounds, target="readmitted", rows=500).fit(secure.ask)
    found |= {name: one.value.tolist() for name, one in table.items()} | {"odds": fitted.coef_.tolist()}
    Path(str(context.run_config["out"])).write_text(json.dumps(found))
    print(fitted.summary())
