"""`python -m securefed`: the command line where the script `securefed` is not on the path."""

from __future__ import annotations

from securefed._commands.cli import app

if __name__ == "__main__":
    app(prog_name="securefed")
