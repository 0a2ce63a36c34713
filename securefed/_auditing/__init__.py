"""Audit what messages leak: run attacks on views of recorded runs, score them, judge and report."""
