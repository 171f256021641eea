"""How this process comes to its end, as far as Python tells: by itself, by an error nobody handled, by `sys.exit`.

A signal that kills, and `os._exit`, tell nobody: nothing here notices them.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import NoReturn

Mark = tuple[int, int]
"""What had gone wrong already at some moment: the identity of the last error that nobody handled (a notebook has errors that
end nothing), and how often `sys.exit` was called."""

_SYS = vars(sys)
"""Where Python keeps the last error that nobody handled: as `last_exc` from 3.12 on, as `last_value` before."""

_exit_codes: list[object] = []
"""What the main thread gave `sys.exit`, one for each call; all but the last were caught."""


def watch_exits() -> None:
    """From now on what the main thread gives `sys.exit` is known. Safe to repeat.

    Python tells nobody else: at the end of the process the SystemExit is gone, and a run whose framework caught the
    error, printed it and called `sys.exit(1)` would look like one that came to its end.
    """
    theirs = sys.exit
    if getattr(theirs, "watched", False):
        return

    @functools.wraps(theirs)
    def watched_exit(status: object = None, /) -> NoReturn:
        if threading.current_thread() is threading.main_thread():
            _exit_codes.append(status)
        theirs(status)  # type: ignore[arg-type]

    watched_exit.watched = True  # type: ignore[attr-defined]
    sys.exit = watched_exit


def mark() -> Mark:
    """This moment: what is known of now is not what ends the process later."""
    return id(_SYS.get("last_exc") or _SYS.get("last_value")), len(_exit_codes)


def failure_since(earlier: Mark) -> str:
    """Why the process ends, when by a failure: `RuntimeError: ...`. Empty: it came to its end."""
    error, (earlier_error, earlier_exits) = _last_unhandled(), earlier
    if error is not None and id(error) != earlier_error:
        return named(error)
    if len(_exit_codes) > earlier_exits and _exit_codes[-1] not in (None, 0):
        return f"SystemExit: {_exit_codes[-1]}"
    return ""


def named(error: BaseException) -> str:
    """An error as a run's page shows it."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _last_unhandled() -> BaseException | None:
    error: BaseException | None = _SYS.get("last_exc") or _SYS.get("last_value")
    return error
