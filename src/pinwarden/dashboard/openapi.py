"""The description of the dashboard's JSON API as an OpenAPI document, served at ``openapi.json``."""

from __future__ import annotations

from typing import Any

from pinwarden.dashboard.audit_pages import FILTER_FIELDS
from pinwarden.gateway.policy_what_if import MAX_DAYS

Json = dict[str, Any]
_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_OPTIONAL: Json = {"type": ["string", "null"]}
_NAME: Json = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
_REFUSALS = {
    "401": "There is no session: sign in first.",
    "403": "The token of the session is missing, or the role does not allow this.",
    "404": "There is no such change.",
    "409": "The change differs from what was shown, or was decided on already.",
    "413": "The request is too large.",
    "422": "The parameters or the decision are not acceptable.",
    "503": "A source could not be read.",
}
_READ_REFUSALS = ("401", "404", "422", "503")


def build_openapi() -> Json:
    """Return the OpenAPI document.

    Long: one entry for each path.
    """
    page = {"level": _query("level", {"enum": ["critical", "review", "info"]}), "server": _query("server", _TEXT)}
    audit = [
        *(_query(field.name, {"enum": list(field.choices)} if field.choices else _TEXT) for field in FILTER_FIELDS),
        _query("before", {"type": "integer", "minimum": 1}),
    ]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Pinwarden dashboard",
            "version": "1",
            "description": "Pending changes, servers, tools and the audit log, and decisions about changes. A decision "
            "names the member `change` of a change that was read, so a change in between is refused.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "./"}],
        "security": [{"session": []}],
        "paths": {
            "/api/session": _get("Who signed in", _object(name=_TEXT, role=_TEXT, csrf_token=_TEXT)),
            "/api/overview": _get(
                "How many changes are pending",
                _object(pending=_object(critical=_COUNT, review=_COUNT, info=_COUNT), oldest=_OPTIONAL),
            ),
            "/api/reviews": _get(
                "List changes, the worst first",
                _object(reviews=_array(_REVIEW)),
                _query("view", {"enum": ["pending", "decided"]}),
                *page.values(),
            ),
            "/api/reviews/{name}": _get("Show one change, compared with what is approved now", _CHANGE, _path("name")),
            "/api/servers": _get(
                "List servers", _object(servers=_array(_object(name=_TEXT, id=_TEXT, blocked=_COUNT)))
            ),
            "/api/tools": _get(
                "Search the tools of all servers",
                _object(tools=_array(_object(server=_TEXT, item=_TEXT, state=_TEXT, tokens=_COUNT)), more=_BOOLEAN),
                _query("q", {"type": "string", "maxLength": 200}),
            ),
            "/api/clients": _get(
                "List the tokens of clients, and the gateways that run",
                _object(tokens=_array(_object(id=_TEXT, client=_TEXT)), gateways=_array(_object(place=_TEXT))),
            ),
            "/api/audit": _get(
                "List events of the audit log, the newest first",
                _object(entries=_array(_object(number=_COUNT))),
                *audit,
            ),
            "/api/policy": _get(
                "Show the policy of the gateway", _object(settings={"type": "object"}, rules=_array({"type": "object"}))
            ),
            "/api/decisions": _post(
                "Approve or reject changes, all or none",
                {
                    **_object(
                        action={"enum": ["approve", "reject"]},
                        changes={**_array(_TEXT), "minItems": 1, "maxItems": 100},
                    ),
                    "additionalProperties": False,
                },
                why=True,
            ),
            "/api/what-if": _post(
                "Try a policy on the recorded calls; nothing is stored",
                {
                    "type": "object",
                    "properties": {
                        "policy": _TEXT,
                        "days": {"type": "integer", "minimum": 1, "maximum": MAX_DAYS},
                    },
                    "required": ["policy"],
                    "additionalProperties": False,
                },
                why=False,
                answer=_object(newly_refused=_COUNT, calls=_COUNT, differences=_array({"type": "object"})),
            ),
            "/api/comments": _post(
                "Comment on a change, or ask other reviewers",
                {
                    **_object(
                        name=_NAME,
                        kind={"enum": ["comment", "question"]},
                        content={"type": "string", "minLength": 1, "maxLength": 2000},
                    ),
                    "additionalProperties": False,
                },
                why=False,
            ),
            "/api/undo": _post(
                "Undo decisions",
                {**_object(names={**_array(_NAME), "minItems": 1, "maxItems": 100}), "additionalProperties": False},
                why=True,
            ),
        },
        "components": {
            "securitySchemes": {"session": {"type": "apiKey", "in": "cookie", "name": "pinwarden"}},
            "schemas": {"Error": _object(error=_object(code=_TEXT, message=_TEXT, hint=_TEXT))},
        },
    }


_BOOLEAN: Json = {"type": "boolean"}


def _object(**members: Json) -> Json:
    """Return a schema of an object that has all of these members."""
    return {"type": "object", "properties": members, "required": list(members)}


def _array(items: Json) -> Json:
    return {"type": "array", "items": items}


_REVIEW = _object(name=_NAME, server=_TEXT, entity=_TEXT, item=_TEXT, level=_TEXT, state=_TEXT, opened=_TEXT)
_CHANGE = _object(
    review=_REVIEW,
    change=_TEXT,
    verdict=_TEXT,
    differences=_array(_object(severity=_TEXT, words=_TEXT, reason=_TEXT, path=_TEXT)),
    warnings=_array(_TEXT),
    served=_TEXT,
    approval_goes_to=_OPTIONAL,
    needs_two_people=_BOOLEAN,
    comments=_array(_object(kind=_TEXT, by=_TEXT, written=_TEXT, content=_TEXT)),
)


def _get(summary: str, schema: Json, *parameters: Json) -> Json:
    return {"get": {"summary": summary, "parameters": list(parameters), "responses": _respond(schema, _READ_REFUSALS)}}


def _post(summary: str, schema: Json, *, why: bool, answer: Json | None = None) -> Json:
    if why:
        schema = {**schema, "properties": {**schema["properties"], "why": {"type": "string", "maxLength": 2000}}}
    token = {"name": "x-csrf-token", "in": "header", "required": True, "schema": _TEXT}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    responses = _respond(_object(notes=_array(_TEXT)) if answer is None else answer, tuple(_REFUSALS))
    return {"post": {"summary": summary, "parameters": [token], "requestBody": body, "responses": responses}}


def _respond(schema: Json, refusals: tuple[str, ...]) -> Json:
    error = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    return {
        "200": {"description": "Done", "content": {"application/json": {"schema": schema}}},
        **{status: {"description": _REFUSALS[status], **error} for status in refusals},
    }


def _query(name: str, schema: Json) -> Json:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _path(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": _NAME}
