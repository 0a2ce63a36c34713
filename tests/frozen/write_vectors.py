"""Write the protocol vectors anew, after a change of the protocol's version: `python -m tests.frozen.write_vectors`."""

from __future__ import annotations

import json
from pathlib import Path

from securefed._messages import PROTOCOL_VERSION
from tests.frozen.cases import CASES

PLACE = Path(__file__).parent / "protocol_vectors.json"


def main() -> None:
    """Record all cases."""
    vectors = {name: case.record() for name, case in CASES.items()}
    PLACE.write_text(json.dumps({"protocol": PROTOCOL_VERSION, "cases": vectors}, indent=0) + "\n")


if __name__ == "__main__":
    main()
