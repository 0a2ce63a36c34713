"""Flower: `SecureStrategy` and `secure_mod` around a Flower app; `serve` and `client_app` for algorithms of ours.

    # ServerApp: wrap the strategy; it then receives means of updates, and no single update
    strategy = SecureStrategy(FedAvg(), secure_aggregation(), context.run_config, largest_weight=5000)

    # ClientApp: add the mod; `@app.train` and `@app.evaluate` stay as they were
    app = ClientApp(mods=[secure_mod])

Statistics of the SuperNodes' rows, and the sums of what `@app.query` replies, go through `SecureQueries`:

    found = SecureQueries(grid, secure_aggregation(), context.run_config).ask(Mean(bound=120, rows=1000))

Algorithms of this package run without a Flower strategy:

    client = client_app(lambda context: terms(context.run_config), rows)     # rows(context): this node's own data

    @server.main()
    def main(grid, context):
        result = serve(grid, terms(context.run_config), rounds=20)

Needs the extra `flower`. Flower answers every message in a new process, so a client's state is stored in its SuperNode
between two messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import securefed.flower._grid  # noqa: F401 - first, as it names the extra where that is missing
from securefed._lazy import export_lazily

if TYPE_CHECKING:
    from securefed.flower._app_reply import AppReply
    from securefed.flower._client import client_app
    from securefed.flower._mod import secure_mod
    from securefed.flower._outcome import SecureRound
    from securefed.flower._queries import SecureQueries
    from securefed.flower._query_rows import statistics
    from securefed.flower._server import serve
    from securefed.flower._site import SitePolicy
    from securefed.flower._strategy import SecureStrategy

__all__ = [
    "AppReply",
    "SecureQueries",
    "SecureRound",
    "SecureStrategy",
    "SitePolicy",
    "client_app",
    "secure_mod",
    "serve",
    "statistics",
]

EXPORTS: Final = {
    "securefed.flower._app_reply": "AppReply",
    "securefed.flower._strategy": "SecureStrategy",
    "securefed.flower._mod": "secure_mod",
    "securefed.flower._site": "SitePolicy",
    "securefed.flower._outcome": "SecureRound",
    "securefed.flower._queries": "SecureQueries",
    "securefed.flower._query_rows": "statistics",
    "securefed.flower._server": "serve",
    "securefed.flower._client": "client_app",
}
export_lazily(__name__, EXPORTS)
