"""What owners do: write on runs and delete them, make and revoke tokens, look at the audit trail."""

from __future__ import annotations

from collections.abc import Sequence

from isentrope.rest_connection import Json, RestConnection, segment


class Administration(RestConnection):
    """The part of the client that changes more than a control."""

    def edit_run(self, run_id: str, *, tags: Sequence[str] | None = None, notes: str | None = None) -> Json:
        """Write tags or notes on a run; None leaves them as they are. Returns the run."""
        changes = {"tags": None if tags is None else list(tags), "notes": notes}
        return self._json(
            "PATCH",
            f"runs/{segment(run_id)}",
            json={name: value for name, value in changes.items() if value is not None},
        )

    def delete_run(self, run_id: str) -> None:
        """Delete a run with all it reported.

        Raises:
            RequestRefused: it is still reporting.
        """
        self._done("DELETE", f"runs/{segment(run_id)}")

    def access_tokens(self) -> list[Json]:
        """Every token, revoked ones too, without its secret."""
        return self._all("access-tokens")

    def create_access_token(
        self, scope: str, *, name: str | None = None, run: str | None = None, project: str | None = None
    ) -> Json:
        """Make a token; its secret is under `token` in this answer and nowhere else.

        Args:
            scope: read, ingest, control or admin.
            name: stands as the author beside changes made with it; None: the scope.
            run: only with ingest: the one run it reports, by id or name.
            project: only with ingest: the project whose runs it reports.
        """
        wanted = {"scope": scope, "name": name, "run": run, "project": project}
        return self._json("POST", "access-tokens", json=wanted)

    def revoke_access_token(self, token_id: str) -> None:
        """From now on it opens nothing, and what it has open is closed."""
        self._done("DELETE", f"access-tokens/{segment(token_id)}")

    def audit(self, *, limit: int | None = None) -> list[Json]:
        """Every change of controls, runs and tokens, newest first; with a limit the newest so many."""
        return list(self._items("audit", {}, limit))

    def verify_audit(self, *, head: str | None = None) -> Json:
        """Whether the audit trail is whole (`is_whole`), and the hash of its newest entry (`head`).

        Args:
            head: the hash of an earlier verification, kept elsewhere: does it still stand?
        """
        return self._json("GET", "audit/verification", params={"head": head})
