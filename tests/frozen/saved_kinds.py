"""Use a saved file of every kind as its owner would: open it and go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from securefed import Ledger, Limits, Transcript
from securefed._auditing.report import audit_json
from securefed.attacks import views
from securefed.defenses import secure_aggregation
from securefed.errors import SecureFedError
from securefed.flower import SitePolicy, secure_mod, serve
from securefed.parties import SumClient, SumServer, SumTerms
from tests.flower import ordinary_app
from tests.flower.test_flower_runs import grid_of, quick
from tests.flower.test_secure_strategy import run as flower_run
from tests.frozen import save_files as saved
from tests.remedies.followed import run


def transcript(folder: Path) -> None:
    read = Transcript.load(folder / "run.transcript")
    assert [record.survivors for record in read.records] == [(0, 1, 2)]
    assert len(views.sum_only(read, 0).rounds) == 1


def report(folder: Path) -> None:
    assert {cell["verdict"] for cell in audit_json.read(folder / "audit.json")["cells"]} >= {"exposed"}


def ledger(folder: Path) -> None:
    """It goes on counting: two exchanges were declared, two answered."""
    opened = Ledger.open(folder / "site.ledger", Limits(exchanges=20, epsilon=100.0))
    assert opened.spent.exchanges == 4 and 0 < opened.spent.epsilon < 100


def terms(folder: Path) -> None:
    """They are the terms that this release makes, but for what it added to them."""
    for name, ours in (("masked", saved.MASKED), ("private", saved.PRIVATE)):
        read = SumTerms.from_bytes((folder / f"{name}.terms").read_bytes())
        assert (read.tensors, read.clients, read.epsilon) == (ours.tensors, ours.clients, ours.epsilon)


def checkpoint(folder: Path) -> None:
    """The run goes on to a third round."""
    assert len(saved.subspace(folder / "noised.checkpoint").run(3).history) == 3


def sealed_checkpoint(folder: Path) -> None:
    assert len(saved.classifier(folder / "sealed.checkpoint").run(3).history) == 3


def of_file(folder: Path, name: str) -> SumTerms:
    return SumTerms.from_bytes((folder / f"{name}.terms").read_bytes())


def server(folder: Path) -> None:
    """A round is open, at the stage behind the uploads."""
    opened = SumServer(of_file(folder, "masked"), file=folder / "masked-server.state")
    assert opened.result is None and len(opened.outgoing) == saved.CLIENTS


def client(folder: Path) -> None:
    opened = SumClient(of_file(folder, "masked"), 0, identity=saved.KEYS[0], file=folder / "masked-client.state")
    assert opened.run is not None


def client_with_a_ledger(folder: Path) -> None:
    kept = Ledger.open(folder / "site.ledger", Limits(exchanges=20, epsilon=100.0))
    opened = SumClient(of_file(folder, "private"), 0, file=folder / "private-client.state", ledger=kept)
    assert opened.spent is not None and opened.spent.exchanges == 4


def sealed_client(folder: Path) -> None:
    agreed = saved.terms(secure_aggregation(verify=True))
    assert SumClient(agreed, 0, file=folder / "sealed-client.state", seal=saved.SEAL).run is not None


def party(folder: Path) -> None:
    """The server's command goes on from the uploads, and a client's answers what it asks."""
    place, options = folder / "party", ["--terms", folder / "party" / "terms.json"]
    for path in place.glob("*.key"):
        path.chmod(0o600)
    keys = ("--identity", place / "server.key"), ("--server", place / "server.key.pub")
    first = run("party", "sum", place / "exchange", *options, *keys[0], "--state", place / "server.state")
    second = run("party", "contribute", place / "exchange", *options, *keys[1], "--party", 0, "--state",
               place / "0.state", "--identity", place / "0.key", "--update", place / "update.npz")  # fmt: skip
    assert "stage 4" in first and "stage 4" in second


def served(folder: Path) -> None:
    place = folder / "flower"
    grid = grid_of(saved.SERVED, folder=lambda _: place / "clients")
    result = serve(grid, saved.SERVED, 3, **quick(checkpoint=place / "server.checkpoint"))
    assert len(result.history) == 3


def strategy(folder: Path, policy: SitePolicy | None = None) -> None:
    """Epsilon goes on from what the run before spent."""
    opened, fresh = saved.strategy(folder / "flower" / "sums"), saved.strategy(None)
    mod = secure_mod if policy is None else secure_mod(policy)
    flower_run(opened, ordinary_app.grid(mod), 1)
    flower_run(fresh, ordinary_app.grid(secure_mod), 1)
    assert opened.epsilon > fresh.epsilon


def site(folder: Path) -> None:
    """The same run, at a site that has answered in it."""
    strategy(folder, SitePolicy(folder=folder / "flower" / "sites"))


KINDS: dict[str, Callable[[Path], None]] = {
    "a transcript": transcript,
    "a report": report,
    "a ledger": ledger,
    "terms": terms,
    "a checkpoint": checkpoint,
    "a sealed checkpoint with clients' states": sealed_checkpoint,
    "a server's state": server,
    "a client's state": client,
    "a client's state beside a ledger": client_with_a_ledger,
    "a client's sealed state": sealed_client,
    "the states and folder of `securefed party`": party,
    "the folders of `serve` and `client_app`": served,
    "the folder of `SecureStrategy`": strategy,
    "the folder of `secure_mod`": site,
}


def outcome(use: Callable[[Path], None], folder: Path) -> str:
    """Return "read", or the named error and its text."""
    try:
        use(folder)
    except SecureFedError as error:
        return f"{type(error).__name__}: {error}"
    return "read"
