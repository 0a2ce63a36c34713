"""Checks for your own test suite: a gate on leakage, and the contract checks of algorithms, attacks and defences.

    from securefed.testing import parametrize_with_checks

    @parametrize_with_checks([MyAlgorithm(rank=2)])
    def test_contract(instance, check):
        check(instance)

Each check raises an `AssertionError` that says which rule the object breaks.
"""

from securefed.testing._leakage_gate import assert_leakage_below
from securefed.testing._parametrize import checks_for, parametrize_with_checks

__all__ = ["assert_leakage_below", "checks_for", "parametrize_with_checks"]
