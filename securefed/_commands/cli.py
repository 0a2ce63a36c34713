"""The command line: `securefed audit | attack | compare | run | key | plan | list | party`."""

from securefed._commands import audits, party, runs  # importing a module registers its commands, in the order of --help
from securefed._commands.base import app

__all__ = ["app", "audits", "party", "runs"]
