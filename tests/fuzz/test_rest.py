"""Requests made from the API's own description, valid and broken, with tokens of three scopes: each
answer is one the description knows, none is an error of the server's own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from isentrope_server.app import create_app
from isentrope_server.settings import Settings
from isentrope_wire.reports import (
    Alert,
    AlertLevel,
    DrivingToken,
    RunFinished,
    ScoreHistogram,
    StepReport,
)
from tests.fuzz.examples import few_and_many
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report

RUN = "known"
SCOPES = ("read", "control", "admin")
_CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]


def _operations() -> dict[str, Any]:
    document = create_app(Settings(dashboard=False)).openapi()
    described = schemathesis.openapi.from_dict(document)
    found: list[Any] = [
        result.ok() for result in described.get_all_operations() if isinstance(result, Ok)
    ]
    assert len(found) == sum(len(verbs) for verbs in document["paths"].values())
    return {operation.label: operation for operation in found}


OPERATIONS = _operations()


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    """A server with a run that has something behind every address."""
    with ServerInThread(tmp_path_factory.mktemp("fuzzed") / "home") as running:
        rank = Rank(running, run_id=RUN, name="a <run>", config={"rate": float("nan")})
        for step in range(4):
            rank.send(full_report(step))
        Rank(running, run_id="over").send(
            RunFinished(status="failed", finished_at=time.time(), error="<&\u202e>")
        )
        Rank(running, run_id="empty")
        running.http.put(
            f"{rank.path}/control", json={"method": "none"}, headers={"If-Match": '"0"'}
        )
        yield running


def full_report(step: int) -> StepReport:
    histogram = ScoreHistogram(
        name="entropy/token", low=0.0, high=float("inf"), counts=(1,) * 8, not_finite=2
    )
    token = DrivingToken(
        rank=0,
        sequence=None,
        position=3,
        token_id=None,
        text="<b>\0",
        logprob=float("-inf"),
        entropy=1.0,
        vocab_centered_score=0.1,
        advantage=1.0,
        contribution=float("nan"),
        kept=True,
    )
    plain = step_report(
        step,
        {"entropy/mean": 1.0 / (step + 1), "reward/mean": float("nan")},
        histograms=[histogram],
    )
    return StepReport(
        step=plain.step,
        recorded_at=plain.recorded_at,
        scalars=plain.scalars,
        histograms=plain.histograms,
        tokens=(token,),
        alerts=(
            Alert(
                kind="collapse",
                level=AlertLevel.ACT,
                message="it falls",
                evidence={"entropy/mean": float("nan")},
            ),
        ),
    )


@pytest.fixture(scope="module")
def tokens(fuzzed: ServerInThread) -> dict[str, str]:
    return {scope: fuzzed.token(scope) for scope in SCOPES}


def cases(operation: Any) -> st.SearchStrategy[Any]:
    """Requests as described, about the known run above all; and such as break the description."""
    strategies = [operation.as_strategy()]
    known = {"run_id": RUN} if "{run_id}" in operation.path else None
    if known is not None:
        strategies += [operation.as_strategy(path_parameters=known)] * 2
    if operation.label.startswith("PUT "):
        strategies.append(operation.as_strategy(path_parameters=known, headers={"if-match": '"1"'}))
    if list(operation.iter_parameters()) or operation.body:
        strategies.append(operation.as_strategy(GenerationMode.NEGATIVE))
    return st.one_of(strategies)


@few_and_many(3, 15)
@pytest.mark.parametrize(
    "scope", [pytest.param(s, marks=[] if s == "admin" else [pytest.mark.slow]) for s in SCOPES]
)
@pytest.mark.parametrize("label", OPERATIONS)
def test_answers_match_the_description(
    fuzzed: ServerInThread, tokens: dict[str, str], label: str, scope: str, examples: settings
) -> None:
    @examples
    @given(case=cases(OPERATIONS[label]))
    def ask(case: Any) -> None:
        # uvicorn refuses an address beyond 16 kB, in which a character can take nine bytes, before
        # the application sees it.
        assume(len(str(case.query)) < 4_000)
        answer = case.call(
            base_url=fuzzed.url, headers={"Authorization": f"Bearer {tokens[scope]}"}, timeout=20
        )
        case.validate_response(answer, checks=_CHECKS)
        if answer.status_code >= 400 and case.method != "HEAD":
            error = answer.json()["error"]
            assert set(error) == {"code", "message", "details"}

    ask()
