"""Runs over Flower: `serve` in a ServerApp, `client_app` on every SuperNode.

    # app.py, the same file everywhere
    def terms(config):                                        # what all parties agree on
        public = Public(clients=3, cohort=3, features=30, rows=(190, 190, 189), classes=2, feature_bound=1.0)
        return Terms.of(algorithm, public, chain(secure_aggregation(pipelined=True)), seed=int(config["seed"]))

    client = client_app(lambda context: terms(context.run_config), rows)     # rows(context): this node's own data

    server = ServerApp()
    @server.main()
    def main(grid, context):
        result = serve(grid, terms(context.run_config), rounds=20)

Needs the extra `flower`. The protocol's messages, checks and refusals are those of a run in one process; between two
messages a client's state lies frozen in its SuperNode (`freeze`), as Flower answers every message in a
process of its own.
"""

import securefed.flower._grid  # noqa: F401 - first, as it names the extra where that is missing
from securefed.flower._client import client_app
from securefed.flower._server import serve

__all__ = ["client_app", "serve"]
