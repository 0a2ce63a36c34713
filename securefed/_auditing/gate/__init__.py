"""Decide whether an audit passes: limits on leakage, leaks that grew, and the check of the audit itself."""
