"""Answers over 1 kB go out compressed to clients that accept it, with the same values; events and
Parquet go out as they are."""

from __future__ import annotations

import gzip
import json
import re
import zlib

import httpx
import pytest

from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report

DATABASES = ("sqlite",)

PLAIN = {"Accept-Encoding": "identity"}
GZIP = {"Accept-Encoding": "gzip"}


@pytest.fixture(scope="module")
def reported(server: ServerInThread) -> Rank:
    """A run of 300 steps with forty metrics."""
    rank = Rank(server)
    rank.send(
        *(
            step_report(step, {f"metric/{i}": step / (i + 7) for i in range(40)})
            for step in range(300)
        )
    )
    return rank


def raw(
    server: ServerInThread, path: str, headers: dict[str, str], method: str = "GET"
) -> tuple[httpx.Response, bytes]:
    """An answer and its body as it came over the line."""
    with server.http.stream(method, path, headers=headers) as answer:
        return answer, b"".join(answer.iter_raw())


@pytest.mark.parametrize(
    "path",
    [
        "metrics/series?name=metric/1&name=metric/2",
        "metrics",
        "export?format=csv",
        "export?format=jsonl&labels=true",
    ],
)
def test_large_answers_are_compressed_and_say_the_same(
    server: ServerInThread, reported: Rank, path: str
) -> None:
    path = f"{reported.path}/{path}"
    plain, expected = raw(server, path, PLAIN)
    answer, body = raw(server, path, GZIP)
    assert "content-encoding" not in plain.headers
    assert answer.headers["content-encoding"] == "gzip"
    assert "accept-encoding" in answer.headers["vary"].lower()
    assert "accept-encoding" in plain.headers["vary"].lower()
    assert gzip.decompress(body) == expected
    assert len(body) < 0.7 * len(expected)
    assert answer.headers["content-type"] == plain.headers["content-type"]
    assert answer.headers["x-frame-options"] == "DENY"


def test_small_answers_go_out_as_they_are(server: ServerInThread, reported: Rank) -> None:
    answer, body = raw(server, f"{reported.path}/gaps", GZIP)
    assert "content-encoding" not in answer.headers
    assert len(body) < 1_000
    assert json.loads(body)["items"] == []


def test_a_file_that_is_compressed_already_is_not_compressed_again(
    server: ServerInThread, reported: Rank
) -> None:
    answer, body = raw(server, f"{reported.path}/export?format=parquet", GZIP)
    assert "content-encoding" not in answer.headers
    assert body.startswith(b"PAR1")


def test_the_control_s_tag_stays_what_a_change_builds_on(
    server: ServerInThread, reported: Rank
) -> None:
    path = f"{reported.path}/control"
    change = {"method": "none", "reason": "r" * 1_500}
    assert server.http.put(path, json=change, headers={**GZIP, "If-Match": '"0"'}).status_code in (
        200,
        201,
        202,
    )
    answer, body = raw(server, path, GZIP)
    assert answer.headers["content-encoding"] == "gzip"
    plain, expected = raw(server, path, PLAIN)
    assert gzip.decompress(body) == expected
    assert answer.headers["etag"] == plain.headers["etag"] == '"1"'
    built = server.http.put(path, json=change, headers={**GZIP, "If-Match": answer.headers["etag"]})
    assert built.headers["etag"] == '"2"'


def test_a_stream_of_rows_can_be_read_before_it_ends(make_server: MakeServer) -> None:
    server = make_server()
    rank = Rank(server)
    names = [f"metric/{i}" for i in range(60)]
    for first in range(0, 3_000, 500):
        rank.send(
            *(
                step_report(step, dict.fromkeys(names, step * 1.1))
                for step in range(first, first + 500)
            )
        )
    with server.http.stream("GET", f"{rank.path}/export?format=csv", headers=GZIP) as answer:
        unpacking = zlib.decompressobj(wbits=31)
        pieces = answer.iter_raw()
        first_piece = unpacking.decompress(next(pieces))
        rest = b"".join(unpacking.decompress(piece) for piece in pieces)
    assert first_piece.startswith(b"step,incarnation,rank,time")
    assert (first_piece + rest).count(b"\n") == 3_001


def test_a_page_s_scripts_come_compressed_and_say_the_same(with_pages: ServerInThread) -> None:
    page, body = raw(with_pages, "/", {**GZIP, "Accept": "text/html"})
    assert page.headers["content-encoding"] == "gzip"
    scripts = re.findall(r'src="(/_dash-component-suites/[^"]+)"', gzip.decompress(body).decode())
    assert len(scripts) > 5
    sent = whole = 0
    for path in scripts:
        plain, expected = raw(with_pages, path, PLAIN)
        for _ in range(2):  # compressed, and from what is kept
            answer, body = raw(with_pages, path, GZIP)
            assert gzip.decompress(body) == expected if len(expected) >= 1_000 else body == expected
        assert answer.headers["cache-control"] == plain.headers["cache-control"]
        # Also immutable where the address has the content's hash.
        assert (
            answer.headers["cache-control"].removesuffix(", immutable")
            == "public, max-age=31536000"
        )
        assert answer.headers["content-type"] == plain.headers["content-type"]
        assert "accept-encoding" in answer.headers["vary"].lower()
        assert "accept-encoding" in plain.headers["vary"].lower()
        sent, whole = sent + len(body), whole + len(expected)
    assert sent < 0.35 * whole


def test_our_own_assets_come_compressed_unless_they_are(with_pages: ServerInThread) -> None:
    answer, body = raw(with_pages, "/assets/20-charts.js", GZIP)
    assert gzip.decompress(body) == raw(with_pages, "/assets/20-charts.js", PLAIN)[1]
    again, nothing = raw(
        with_pages, "/assets/20-charts.js", {**GZIP, "If-None-Match": answer.headers["etag"]}
    )
    assert (again.status_code, nothing) == (304, b"")
    font, body = raw(with_pages, "/assets/Inter.var.woff2", GZIP)
    assert "content-encoding" not in font.headers
    assert body.startswith(b"wOF2")
    part, body = raw(with_pages, "/assets/20-charts.js", {**GZIP, "Range": "bytes=0-9"})
    assert (part.status_code, len(body)) == (206, 10)
    assert "content-encoding" not in part.headers
    head, nothing = raw(with_pages, "/assets/20-charts.js", GZIP, method="HEAD")
    assert (head.status_code, nothing) == (200, b"")
