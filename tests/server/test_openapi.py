"""The description of the API is complete: every operation, parameter, answer and error."""

from __future__ import annotations

from typing import Any

import pytest

from isentrope_server.app import create_app
from isentrope_server.security.permissions import OPEN_PATHS, ROUTE_SCOPES
from isentrope_server.settings import Settings

Operation = tuple[str, str, dict[str, Any]]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(Settings(dashboard=False)).openapi()


@pytest.fixture(scope="module")
def operations(document: dict[str, Any]) -> list[Operation]:
    return [
        (verb, path, one)
        for path, verbs in document["paths"].items()
        for verb, one in verbs.items()
    ]


def test_every_route_but_the_pages_is_described(operations: list[Operation]) -> None:
    described = {(verb.upper(), path) for verb, path, _ in operations}
    declared = {(verb, path.replace(":path}", "}")) for verb, path in ROUTE_SCOPES} | {
        ("GET", path) for path in OPEN_PATHS
    }
    assert declared - described == {("GET", "/openapi.json")}
    assert described <= declared


def test_every_operation_has_a_summary_sentence(operations: list[Operation]) -> None:
    summaries = {(verb, path): operation["summary"] for verb, path, operation in operations}
    assert all(5 < len(summary) < 50 for summary in summaries.values()), summaries
    assert len(set(summaries.values())) == len(summaries)
    assert all(operation["description"] and operation["tags"] for _, _, operation in operations)


def test_every_parameter_is_explained_and_every_answer_has_a_schema(
    operations: list[Operation],
) -> None:
    for verb, path, operation in operations:
        for parameter in operation.get("parameters", ()):
            assert parameter["description"], (verb, path, parameter["name"])
        for status, answer in operation["responses"].items():
            assert answer["description"] != "Successful Response"
            assert status == "204" or answer["content"], (verb, path, status)
            assert all(content["schema"] for content in answer.get("content", {}).values()), (
                verb,
                path,
                status,
            )


def test_every_error_has_the_one_body_and_nothing_is_left_to_a_default(
    operations: list[Operation],
) -> None:
    for verb, path, operation in operations:
        statuses = set(operation["responses"])
        assert "default" not in statuses
        expected = {"500"} if path in OPEN_PATHS else {"400", "401", "403", "500", "503"}
        if operation.get("parameters") or "requestBody" in operation:
            expected |= {"422"}
        if "{run_id}" in path or "{token_id}" in path:
            expected |= {"404"}
        assert expected <= statuses, (verb, path)
        for status in statuses - {"200", "201", "202", "204"}:
            content = operation["responses"][status]["content"]["application/json"]
            assert content["schema"] == {"$ref": "#/components/schemas/ErrorBody"}, (
                verb,
                path,
                status,
            )
            assert content["example"]["error"]["code"]


@pytest.mark.parametrize(
    ("schema", "field", "begins"),
    [
        ("RunDetail", "notes", "In a list only"),  # one it has from `RunSummary`
        ("Page_Alert_", "next_cursor", "The `cursor` of"),
        ("ControlDocument", "mu_high", "µ⁺"),
        ("ControlDocument", "expires_in_seconds", "null:"),  # not a docstring
    ],
)
def test_fields_are_described_by_the_text_below_them(
    document: dict[str, Any], schema: str, field: str, begins: str
) -> None:
    assert document["components"]["schemas"][schema]["properties"][field]["description"].startswith(
        begins
    )


def test_fastapi_s_own_error_bodies_are_not_described(document: dict[str, Any]) -> None:
    assert not {"HTTPValidationError", "ValidationError"} & set(document["components"]["schemas"])


def test_each_operation_names_its_scope(operations: list[Operation]) -> None:
    scopes = {(verb, path): operation.get("x-scope") for verb, path, operation in operations}
    assert scopes["get", "/healthz"] is None
    assert scopes["get", "/api/v1/runs"] == "read"
    assert scopes["put", "/api/v1/runs/{run_id}/control"] == "control"
    assert scopes["delete", "/api/v1/access-tokens/{token_id}"] == "admin"
    assert all(scope for (_, path), scope in scopes.items() if path not in OPEN_PATHS)
