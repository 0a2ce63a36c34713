"""Attacks on the sums themselves: what changing cohorts, drop-outs and a dishonest server make of them."""
