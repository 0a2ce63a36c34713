"""Audit registered algorithms: run each one under every defence, or take a recorded run, and attack it."""
