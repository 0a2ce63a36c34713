"""Tell which error replies of SuperNodes `secure_mod` wrote, and say what to do about the others.

A mod that stands before `secure_mod` in `mods=[...]` sees the stages of the sum in place of the app's messages. It may
refuse a stage, raise, or change what passes; each of these makes rounds void. So `secure_mod` marks the errors that it
writes itself, and messages carry digests of what was sent. All this only finds mistakes: it protects nothing.
"""

from __future__ import annotations

from typing import Any, Final

from flwr.common.constant import ErrorCode

MARK: Final = "secure_mod: "
"""Start of the text of every error that `secure_mod` itself replies with."""
ORDER: Final = (
    "let secure_mod stand first, in ClientApp(mods=[secure_mod, ...]): a mod before it sees the stages of the sum in "
    "place of the app's messages"
)
"""The remedy where something else than `secure_mod` answered, or changed a message."""
ALLOW: Final = "; let the site's file (SitePolicy) allow these terms, or propose others"
"""The remedy where `secure_mod` refused."""
_FROM_THE_APP: Final = (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.MOD_FAILED_PRECONDITION)
_LONGEST: Final = 300
"""Characters of a foreign error's text that are passed on."""


def refusal_of(error: Any) -> str | None:
    """Return the text of an error reply with which `secure_mod` refuses the server's request; `None` for others."""
    reason = str(error.reason)
    if error.code != ErrorCode.MOD_FAILED_PRECONDITION or not reason.startswith(MARK):
        return None
    return reason.removeprefix(MARK)


def foreign(error: Any) -> str | None:
    """Return what an error reply says that is no refusal of `secure_mod`'s and came from the SuperNode, and what to do.

    Flower's own errors, as of a SuperNode that is not connected, give `None`.
    """
    reason = str(error.reason)
    if error.code == ErrorCode.LOAD_CLIENT_APP_EXCEPTION:
        return f"its app cannot be loaded: {reason:.{_LONGEST}}"
    if error.code not in _FROM_THE_APP:
        return None
    if reason.startswith(MARK):
        return reason.removeprefix(MARK)
    return f"not secure_mod answered, but an error of its app or of another mod: {reason:.{_LONGEST}}; {ORDER}"
