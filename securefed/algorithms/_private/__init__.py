"""Algorithms whose clients keep single records private by themselves."""
