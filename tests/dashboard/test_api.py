"""The JSON API is as its OpenAPI document says, for generated requests of every operation, and decides like pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from pinwarden.dashboard.openapi import build_openapi
from tests.dashboard.hostile_world import fill
from tests.dashboard.world import Answer, Client, serving_dashboard
from tests.gateway.review_world import CHANGED, EVIL, SEARCH, ReviewWorld, names

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
schema = schemathesis.openapi.from_dict(build_openapi())


class Captured:
    def readouterr(self) -> tuple[str, str]:
        return "", ""


@pytest.fixture(scope="module")
def signed_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a dashboard with hostile content."""
    with pytest.MonkeyPatch.context() as patch:
        world = ReviewWorld(tmp_path_factory.mktemp("api"), patch, Captured())  # type: ignore[arg-type]
        fill(world)
        with serving_dashboard(world.state) as served:
            yield served.client()
        world.state.close()


def get(client: Client, path: str) -> Any:
    answer = client.page(path)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json"), answer.text
    return json.loads(answer.body)


def post(client: Client, path: str, body: Any, **headers: str) -> Answer:
    token = get(client, "api/session")["csrf_token"]
    sent = {"content-type": "application/json", "origin": f"http://{client.host}", "x-csrf-token": token, **headers}
    return client.send("POST", f"{client.base}{path}", json.dumps(body).encode(), sent)


@schema.parametrize()
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_attack_generated_requests_get_the_described_responses(case: Any, signed_in: Client) -> None:
    token = get(signed_in, "api/session")["csrf_token"]
    headers = {"cookie": signed_in.cookie, "origin": f"http://{signed_in.host}", "x-csrf-token": token}
    case.call_and_validate(base_url=f"http://{signed_in.host}{signed_in.base}", checks=CHECKS, headers=headers)


def test_every_operation_answers_with_hostile_content(signed_in: Client) -> None:
    for path, operations in build_openapi()["paths"].items():
        if "{" not in path and "get" in operations:
            get(signed_in, path[1:])
    for review in get(signed_in, "api/reviews")["reviews"]:
        assert get(signed_in, f"api/reviews/{review['name']}")["review"] == review
    assert get(signed_in, "openapi.json") == build_openapi()


def test_a_program_decides_about_what_it_read(world: ReviewWorld, client: Client) -> None:
    world.serve(SEARCH)
    (name,) = world.serve(CHANGED)
    assert get(client, "api/overview")["pending"] == {"critical": 0, "review": 1, "info": 0}
    change = get(client, f"api/reviews/{name}")
    assert change["differences"][0]["words"] == "The description was reworded."
    answer = post(client, "api/decisions", {"action": "approve", "changes": [change["change"]], "why": "read"})
    assert (answer.status, json.loads(answer.body)["notes"][0]) == (200, "1 change approved by ana.")
    assert names(world.approved()) == {"search": CHANGED["description"]}
    assert post(client, "api/undo", {"names": [name]}).status == 200
    assert names(world.approved()) == {"search": SEARCH["description"]}
    assert [event[2] for event in world.events()] == ["ana", "ana"]


def test_attack_a_program_cannot_approve_what_it_did_not_read(world: ReviewWorld, client: Client) -> None:
    (shown,) = world.serve(CHANGED)
    change = get(client, f"api/reviews/{shown}")["change"]
    world.serve(EVIL)
    before = world.files()
    answer = post(client, "api/decisions", {"action": "approve", "changes": [change]})
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (409, "REVIEW_STALE")
    assert world.files() == before


def test_attack_csrf_the_api_takes_nothing_from_another_origin_or_without_the_token(
    world: ReviewWorld, client: Client
) -> None:
    (name,) = world.serve(CHANGED)
    body = {"action": "approve", "changes": [get(client, f"api/reviews/{name}")["change"]]}
    before = world.files()
    for headers in ({"origin": "https://evil.example"}, {"origin": "-"}, {"x-csrf-token": "x"}, {"x-csrf-token": "-"}):
        assert post(client, "api/decisions", body, **headers).status == 403
    assert post(client, "api/decisions", body, **{"content-type": "text/plain"}).status == 422
    assert post(client, "api/decisions", body, cookie="-").status == 401
    assert world.files() == before
    answer = Client(f"http://{client.host}/").get(f"{client.base}api/session")
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (401, "SIGN_IN_FAILED")
