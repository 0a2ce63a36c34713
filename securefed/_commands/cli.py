"""The command line: `securefed audit | attack | compare | run | key | plan | list`."""

from securefed._commands import audits, runs  # in the order of the help; importing a module registers its commands
from securefed._commands.base import app

__all__ = ["app", "audits", "runs"]
