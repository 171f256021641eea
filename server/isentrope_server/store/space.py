"""Space: what deleted rows took goes back to the file system.

SQLite keeps the pages it no longer needs, and gives the last ones back when told to; that it may, a database has to be
told before its first table, or once by writing it anew. PostgreSQL's autovacuum makes such pages free for other rows.
"""

from __future__ import annotations

from sqlalchemy import Connection, Engine

FREE_PAGES_KEPT = 1_000
"""The next reports take them."""
PAGES_AT_ONCE = 1_000
"""Some milliseconds of the writer's time."""

_INCREMENTAL = 2


def free_pages(connection: Connection) -> int:
    """Pages of the file that hold nothing; 0 where the database looks after them itself."""
    if connection.dialect.name != "sqlite":
        return 0
    return int(connection.exec_driver_sql("PRAGMA freelist_count").scalar_one())


def give_back(connection: Connection) -> None:
    """Make the file smaller by some of its free pages, in the caller's transaction."""
    cursor = connection.connection.cursor()
    cursor.execute(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})")
    # Each step of the statement frees a page, and its rows have no columns, which SQLAlchemy takes for no rows.
    cursor.fetchall()
    cursor.close()


def make_returnable(engine: Engine) -> None:
    """Write a database of an older version anew, once, if it could never become smaller. Takes seconds per gigabyte."""
    if engine.dialect.name != "sqlite":
        return
    # Outside of any transaction: VACUUM is one of its own.
    raw = engine.raw_connection()
    try:
        cursor = raw.cursor()
        (mode,) = cursor.execute("PRAGMA auto_vacuum").fetchone()
        if mode != _INCREMENTAL:
            cursor.execute(f"PRAGMA auto_vacuum = {_INCREMENTAL}")
            cursor.execute("VACUUM")
    finally:
        raw.close()
