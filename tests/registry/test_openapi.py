"""The API of a live registry is as its OpenAPI document says, for generated requests of every operation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from pinwarden.registry.http.app import RegistryApp
from pinwarden.registry.http.openapi import build_openapi
from tests.registry.pages.conftest import serving
from tests.registry.world import attested, bundle, open_world

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
schema = schemathesis.openapi.from_dict(build_openapi())


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    world = open_world(tmp_path_factory.mktemp("openapi") / "registry")
    made = bundle()
    world.publish(made, attestations=[attested(made, world.key)])
    world.publish(bundle(version="1.1.0", content=b"other\n"))
    with serving(world.registry) as address:
        yield address
    world.registry.close()


@schema.parametrize()
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_attack_generated_requests_get_the_described_responses(case: Any, url: str) -> None:
    case.call_and_validate(base_url=url, checks=CHECKS)


def test_what_is_published_is_as_described(url: str) -> None:
    """Generated names are never those of a published bundle, so these requests are fixed."""
    version = json.loads(read(url, "versions/acme.notes/1.0.0.json"))
    tool, cids = {"tool": "acme.notes"}, {name: version[name] for name in ("root_cid", "descriptor_cid")}
    requests: dict[str, dict[str, str]] = {
        "/registry.json": {},
        "/tools.json": {},
        "/tools/{tool}.json": tool,
        "/versions/{tool}/{version}.json": {**tool, "version": "1.0.0"},
        "/pointers/{tool}/{channel}.json": {**tool, "channel": "stable"},
        "/pointers/{tool}/{channel}.tlog-proof": {**tool, "channel": "stable"},
        "/pointers/{tool}/{channel}.event": {**tool, "channel": "stable"},
        "/documents/{cid}.json": {"cid": version["descriptor_cid"]},
        "/manifests/{root_cid}/{descriptor_cid}.json": cids,
        "/attestations/{root_cid}/{descriptor_cid}.json": cids,
        "/blobs/{cid}": {"cid": version["archive"]["cid"]},
        "/log/tile/{level}/{index}": {"level": "0", "index": "000.p"},
        "/api/search": {},
        "/api/compare/{tool}/{before}/{after}": {**tool, "before": "1.0.0", "after": "1.1.0"},
        "/v0.1/servers": {},
        "/v0.1/servers/{name}/versions": {"name": "acme/notes"},
        "/v0.1/servers/{name}/versions/{version}": {"name": "acme/notes", "version": "latest"},
        "/health": {},
    }
    for path, parameters in requests.items():
        response = schema[path]["GET"].Case(path_parameters=parameters).call_and_validate(base_url=url, checks=CHECKS)
        expected = 404 if path.startswith("/log/tile") else 200  # a partial tile has a slash in its name
        assert response.status_code == expected, path


def read(url: str, path: str) -> bytes:
    with urlopen(url + path) as response:
        return bytes(response.read())


def test_the_document_that_a_registry_serves_is_the_one_in_the_documentation(url: str) -> None:
    documented = Path(__file__).parents[2] / "docs" / "reference" / "registry-api.json"
    assert json.loads(read(url, "openapi.json")) == json.loads(documented.read_text())


def test_every_route_of_the_api_is_described(tmp_path: Path) -> None:
    operation = {"/openapi.json", "/metrics", "/readyz"}  # not for clients of the registry
    with closing(open_world(tmp_path / "registry").registry) as registry:
        served = {route.path.replace(":path}", "}") for route in RegistryApp(registry)._build_routes()}
    assert served - operation <= set(build_openapi()["paths"])
