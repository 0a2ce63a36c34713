"""Whole programs around the library."""
