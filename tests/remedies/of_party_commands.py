"""Remedies of `securefed party`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from securefed.statistics import Mean
from tests.remedies.followed import Followed, found, run, with_options, without_options

ANSWER = "securefed/_commands/party_answer.py"
FILES = "securefed/_commands/party_files.py"
TURNS = "securefed/_commands/party_turns.py"
LIKE = ("--like", "u.npz", "--clients", 3, "--bound", 8)
VALUES = {
    "--update": "u.npz", "--weight": 5, "--largest-weight": 9, "--base": "u.npz", "--no-base": True, "--round": 1,
}  # fmt: skip


def agreed(*options: object, defense: str = "plain") -> None:
    """Make what a sum of three clients needs: an update, identities, terms, and an exchange folder."""
    np.savez("u.npz", w=np.ones(3))
    for name in ("server", "0", "1", "2"):
        run("party", "identity", f"{name}.key")
    Path("exchange").mkdir(exist_ok=True)
    terms(*options, defense=defense)


def terms(*options: object, defense: str = "plain") -> None:
    Path("terms.json").unlink(missing_ok=True)
    public = [part for n in range(3) for part in ("--identity", f"{n}={n}.key.pub")] if defense != "plain" else []
    run("party", "terms", "terms.json", *LIKE, "--defense", defense, *public, *options)


def server(*options: object) -> str:
    return run("party", "sum", "exchange", "--terms", "terms.json", "--identity", "server.key", *options)


def client(*options: object, number: object = 0, identity: bool = False) -> str:
    own = ("--identity", f"{number}.key") if identity else ()
    return run(
        "party", "contribute", "exchange", "--terms", "terms.json", "--party", number, "--server", "server.key.pub",
        *own, *options,
    )  # fmt: skip


def asked(*options: object, terms: tuple[object, ...] = ("--no-base",), base: bool = False) -> str:
    """Open a round and answer its request."""
    agreed(*terms)
    server(*(("--base", "u.npz") if base else ()))
    return client(*options)


def other_defense(*identities: object) -> str:
    agreed("--no-base")
    return run("party", "terms", "other.json", *LIKE, "--no-base", "--defense", "plain", *identities)


def answered_by_another_state() -> str:
    asked("--update", "u.npz", "--state", "mine.state")
    return client("--update", "u.npz", "--state", "other.state")


def lost_state() -> str:
    agreed("--no-base", "--threshold", 2, defense="secure_aggregation")
    server()
    for number in range(3):
        client(number=number, identity=True)
    server()
    for end in ("state", "ledger"):  # the ledger of the data stands beside the state
        Path(f"client-0.{end}").rename(f"elsewhere.{end}")
    return client(identity=True)


def found_state(message: str) -> None:
    """Follow each of the three remedies: the folder of the state, `--state`, and a sum without the client."""
    assert "--state" in message and found(r"holds (client-0\.state)", message)
    for number in (1, 2):
        client(number=number, identity=True)
    copy = Path("elsewhere.state").read_bytes()
    assert "is answered" in client("--state", "elsewhere.state", identity=True)
    for reply in Path("exchange").glob("*shares-client-0.reply"):
        reply.unlink()
    Path("client-0.state").write_bytes(copy)
    Path("client-0.ledger").write_bytes(Path("elsewhere.ledger").read_bytes())
    assert "is answered" in client(identity=True)
    for reply in Path("exchange").glob("*shares-client-0.reply"):
        reply.unlink()
    assert "client 0 left out" in server("--without", found(r"--without (\d)", message)).lower()


def weighted(message: str) -> None:
    """Follow both remedies: leave the weight out, and make terms that take one."""
    client("--update", "u.npz")
    start_anew()
    asked(
        "--update", "u.npz", "--weight", 5, terms=("--no-base", *with_options(message.split("make terms")[1], VALUES))
    )


def start_anew() -> None:
    for path in [*Path("exchange").iterdir(), *Path().glob("*.state")]:
        path.unlink()


def lost_server_state(message: str) -> None:
    server(*with_options(message, {"--state": "kept.state"}))
    start_anew()
    server()


def run_without_a_state() -> str:
    agreed("--no-base")
    server("--state", "kept.state")
    return server()


def opened_again(*options: object) -> str:
    agreed()
    server("--base", "u.npz")
    return server("--base", "other.npz", *options) if np.savez("other.npz", w=np.zeros(3)) is None else ""


def without_a_base(message: str) -> None:
    model, none = message.split("or, where")
    server(*with_options(model, VALUES))
    start_anew()
    terms(*with_options(none, VALUES))
    server()


def not_an_identity(name: str) -> Callable[[Path], str]:
    def raises(folder: Path) -> str:
        agreed("--no-base")
        Path("short.key").write_bytes(b"none")
        Path("short.key").chmod(0o600)
        return run("party", "sum", "exchange", "--terms", "terms.json", "--identity", name)

    return raises


def signed_by(key: str) -> str:
    return run("party", "sum", "exchange", "--terms", "terms.json", "--identity", key)


def made_as_told(message: str) -> None:
    """Run the command that the message quotes, then use the file that it makes."""
    told = found(r"`securefed (.*?)`", message).split()
    run(*told)
    signed_by(told[-1])


def given_file_of_the_command(message: str) -> None:
    run(*found(r"file of `(.*?)`", message).split(), "made.key")
    signed_by("made.key")


def table_of_a_statistic(*options: object) -> str:
    """Answer the request for a statistic of a table of rows."""
    agreed("--no-base")
    Path("terms.json").write_bytes(Mean(bound=120.0).terms(clients=3, defense=None).to_bytes())
    Path("site.csv").write_text("age\n" + "".join(f"{age}\n" for age in range(20, 40)))
    server()
    return client("--update", "site.csv", *options)


TABLE: dict[str, Followed] = {
    "a training beside a statistic": Followed(
        ANSWER,
        "a statistic of a table is no model that DP-SGD trained",
        lambda _: table_of_a_statistic("--trained", 0),
        lambda message, _: client(*without_options(message, {"--update": "site.csv", "--trained": 0})),
    ),
    "identities without secure aggregation": Followed(
        "securefed/_commands/party.py",
        "leave it out",
        lambda _: other_defense("--identity", "0=0.key.pub"),
        lambda message, _: other_defense(*without_options(message, {"--identity": "0=0.key.pub"})),
    ),
    "a client that is none": Followed(
        ANSWER,
        "a client of these terms",
        lambda _: (agreed("--no-base"), client(number=9)),
        lambda message, _: client(number=found(r"0 to (\d)", message)),
    ),
    "a reply of another state": Followed(
        ANSWER,
        "give --state of the one that did",
        lambda _: answered_by_another_state(),
        lambda message, _: client("--update", "u.npz", *with_options(message, {"--state": "mine.state"})),
    ),
    "a client's state that is gone": Followed(
        ANSWER, "which this client wrote in an earlier stage", lambda _: lost_state(), lambda m, _: found_state(m)
    ),
    "no update": Followed(
        ANSWER,
        "this request asks for the contribution",
        lambda _: asked(terms=("--no-base", "--largest-weight", 9)),
        lambda message, _: client(*with_options(message, VALUES)),
    ),
    "no weight": Followed(
        ANSWER,
        "these terms weight updates",
        lambda _: asked("--update", "u.npz", terms=("--no-base", "--largest-weight", 2**20)),
        lambda message, _: (
            "sit out" not in client("--update", "u.npz", "--weight", found(r"--weight, .* up to (\S+)", message))
        ),
    ),
    "a weight that the terms do not sum": Followed(
        ANSWER,
        "these terms sum no --weight",
        lambda _: asked("--update", "u.npz", "--weight", 5),
        lambda message, _: weighted(message),
    ),
    "an update without its base": Followed(
        ANSWER,
        "give --base, the file that you trained from",
        lambda _: asked("--update", "u.npz", terms=(), base=True),
        lambda message, _: client("--update", "u.npz", *with_options(message, VALUES)),
    ),
    "a file that is no identity": Followed(
        FILES, "holds no private identity", not_an_identity("short.key"), lambda m, _: given_file_of_the_command(m)
    ),
    "no identity": Followed(
        FILES, "there is no identity", not_an_identity("missing.key"), lambda message, _: made_as_told(message)
    ),
    "a state in the exchange folder": Followed(
        FILES,
        "lies in the exchange folder",
        lambda _: (agreed("--no-base"), server("--state", "exchange/server.state")),
        lambda message, _: server(*with_options(message, {"--state": "elsewhere.state"})),
    ),
    "messages without the server's state": Followed(
        TURNS, "holds the messages of a run", lambda _: run_without_a_state(), lambda m, _: lost_server_state(m)
    ),
    "a client to go on without that is none": Followed(
        TURNS,
        "--without must be",
        lambda _: (agreed("--no-base"), server("--without", 9)),
        lambda message, _: server("--without", found(r"0 to (\d)", message)),
    ),
    "a round too early": Followed(
        TURNS,
        "comes before round",
        lambda _: (agreed("--no-base"), server("--round", 5)),
        lambda message, _: server(*found(r"give (--round \d)", message).split()),
    ),
    "an open round with another model": Followed(
        TURNS,
        "is open with another model or cohort",
        lambda _: opened_again("--cohort", "0,1"),
        lambda message, _: server(*without_options(message, {"--base": "other.npz", "--cohort": "0,1"})),
    ),
    "a round without a model": Followed(
        TURNS,
        "give --base, the file that the clients train from",
        lambda _: (agreed(), server()),
        lambda message, _: without_a_base(message),
    ),
}
"""By name, the remedies that are followed."""
