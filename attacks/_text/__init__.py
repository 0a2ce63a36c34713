"""Attacks on the training of text models: which tokens occur, and whole sequences by span checks (DAGER)."""
