"""Compute what an attack's estimate implies: membership, counts, column means, and single people in pooled data."""
