"""Collect these tests where `make test-gpu` runs them: in triton's interpreter, which needs the extra `gpu`, 1 GB."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
