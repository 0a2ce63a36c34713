"""Advise which defence and settings keep a leak below what the user accepts, and say what each costs."""
