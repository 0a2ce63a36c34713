"""Data sets by name, partitions over clients, scalings, and generated data."""
