"""The lock for state that a process has once: global random generators, filters of warnings, parameters in a module.

A thread that changes such state and puts it back holds the lock in between, so that two threads can use this package at
once. It is one lock for all of them, as two locks could be taken in either order.
"""

from __future__ import annotations

import threading

PROCESS_LOCK = threading.RLock()
