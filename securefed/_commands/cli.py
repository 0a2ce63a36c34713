"""Commands: `securefed audit | advise | attack | compare | run | key | plan | list | doctor | party | ledger`."""

from securefed._commands import (  # importing a module registers its commands, in the order of --help
    advising,
    audits,
    doctor,
    ledgers,
    party,
    runs,
)
from securefed._commands.base import app

__all__ = ["advising", "app", "audits", "doctor", "ledgers", "party", "runs"]
