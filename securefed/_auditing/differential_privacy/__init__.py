"""Measure whether noise keeps the epsilon that is claimed for it, and who can be recognised in spite of it."""
