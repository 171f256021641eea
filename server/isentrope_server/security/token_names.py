"""What a token may be called. Its name stands beside every change made with it, so it must look like no other actor."""

from __future__ import annotations

import re
import unicodedata

from isentrope_server.errors import Unprocessable

_OTHER_ACTORS = re.compile(r"owner|server|command line|rank( .*)?|run( \(.*)?")


def check_token_name(name: str) -> None:
    """
    Raises:
        Unprocessable: it has characters nobody sees, or is what the audit trail and the histories of controls call
            somebody who is no token, or the owner's.
    """
    if not name.isprintable():
        raise Unprocessable(
            f"A token's name is of visible characters and spaces, got {name!r}. Leave the others out.", field="name"
        )
    # What looks the same is the same: wide letters, capitals, more spaces.
    looks_like = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
    if not looks_like or _OTHER_ACTORS.fullmatch(looks_like):
        raise Unprocessable(
            f"A token's name can't be blank, owner, server, command line, run or rank, which name others in the audit "
            f"trail, got {name!r}. Choose another.",
            field="name",
        )
