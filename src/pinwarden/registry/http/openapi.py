"""The description of the registry's JSON API as an OpenAPI document, which the registry serves at ``/openapi.json``."""

from __future__ import annotations

from typing import Any

from pinwarden.registry.registry_documents import ACTIONS, IDENTITY_SCHEMA, VERSION_SCHEMA
from pinwarden.registry.search import MAX_PAGE, MAX_QUERY_CHARS

Json = dict[str, Any]
_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_MOMENT: Json = {"type": "string", "format": "date-time"}
_NULLABLE_TEXT: Json = {"type": ["string", "null"]}
_ERRORS = {
    "401": "The token is missing, unknown, expired or revoked.",
    "403": "The token or key does not belong to the namespace.",
    "404": "There is no such bundle, version or document.",
    "408": "The body did not arrive in time.",
    "409": "The request conflicts with what is published, or was already used.",
    "413": "The request is too large, or has no Content-Length.",
    "400": "The documents of the request are not acceptable.",
    "422": "The parameters or documents are not acceptable.",
    "429": "Too many requests; Retry-After says when to try again.",
    "500": "The registry failed.",
    "503": "The registry cannot answer at the moment.",
}
_READ_ERRORS = ("404", "422", "500", "503")
_WRITE_ERRORS = ("400", "401", "403", "404", "408", "409", "413", "422", "429", "500", "503")


def build_openapi() -> Json:
    """Return the OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Pinwarden registry",
            "version": "1",
            "description": "Read bundles, their documents and the transparency log; publish with a token. Every "
            "document can be verified "
            "without trusting the registry: `pinwarden install` and `pinwarden log verify` do.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "./"}],
        "tags": [{"name": tag} for tag in ("search", "files", "log", "official API", "publishing", "operation")],
        "paths": {**_describe_queries(), **_describe_files(), **_describe_writes()},
        "components": {
            "schemas": _SCHEMAS,
            "parameters": _PARAMETERS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "a publish token"}},
        },
    }


# Queries


def _describe_queries() -> Json:
    page = {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": 1}
    query = {"type": "string", "maxLength": MAX_QUERY_CHARS}
    entries = _json_response("Server entries", _object({"servers": _array({"type": "object"}), "metadata": _METADATA}))
    return {
        "/api/search": _get(
            "search",
            "Find bundles that match all words, the best first",
            _json_response("One page of bundles", _ref("SearchResult")),
            _query("q", "Words of names, tools, prompts and descriptions", query),
            _query("page", "The number of the page", page),
        ),
        "/api/compare/{tool}/{before}/{after}": _get(
            "search",
            "Compare two versions: files, API surface hash, and drift of the surface",
            _json_response("The changes", _ref("Comparison")),
            _parameter("tool"),
            _path("before", "The older version", _VERSION),
            _path("after", "The newer version", _VERSION),
            errors=(*_READ_ERRORS, "429"),
        ),
        "/v0.1/servers": _get(
            "official API",
            "List servers as the official MCP registry does",
            entries,
            _query("search", "A part of the name or description", _TEXT),
            _query("cursor", "The cursor of the next page", _TEXT),
            _query("limit", "The number of entries", {"type": "integer", "minimum": 1, "maximum": 100}),
            _query("version", "`latest` for the latest versions only", _TEXT),
        ),
        "/v0.1/servers/{name}/versions": _get(
            "official API", "List the versions of a server", entries, _path("name", "NAMESPACE/NAME", _TEXT)
        ),
        "/v0.1/servers/{name}/versions/{version}": _get(
            "official API",
            "Get one version of a server",
            _json_response("The server entry", {"type": "object"}),
            _path("name", "NAMESPACE/NAME", _TEXT),
            _path("version", "A version, or `latest`", _TEXT),
        ),
        "/health": _get(
            "operation",
            "Check that the database responds",
            _json_response("It responds", _object({"status": {"const": "ok"}, "log_size": _COUNT})),
        ),
    }


# Files


def _describe_files() -> Json:
    document = _json_response("The document", {"type": "object"})
    tool, channel = _parameter("tool"), _parameter("channel")
    root, descriptor = _path("root_cid", "The CID of the files", _CID), _path("descriptor_cid", "", _CID)
    files: list[tuple[str, str, str, Json, tuple[Json, ...]]] = [
        ("/registry.json", "files", "The registry's name, log and key", _ref("Identity"), ()),
        ("/tools.json", "files", "The names of all bundles", _object({"tools": _array(_TEXT)}), ()),
        ("/tools/{tool}.json", "files", "The versions and channels of a bundle", _ref("Tool"), (tool,)),
        (
            "/versions/{tool}/{version}.json",
            "files",
            "A version, signed by the registry",
            _ref("Version"),
            (tool, _parameter("version")),
        ),
        ("/pointers/{tool}/{channel}.json", "files", "The signed pointer of a channel", {}, (tool, channel)),
        ("/documents/{cid}.json", "files", "A descriptor, attestation or surface", {}, (_parameter("cid"),)),
        ("/manifests/{root_cid}/{descriptor_cid}.json", "files", "The manifest of a bundle", {}, (root, descriptor)),
        (
            "/attestations/{root_cid}/{descriptor_cid}.json",
            "files",
            "The CIDs of a bundle's attestations",
            _object({"attestations": _array(_TEXT)}),
            (root, descriptor),
        ),
        ("/log/checkpoint.json", "log", "The head of the log as signed JSON with its time", {}, ()),
        ("/log/keys.json", "log", "All changes of the registry's key", {}, ()),
    ]
    described = {
        path: _get(tag, summary, _json_response(summary, schema) if schema else document, *parameters)
        for path, tag, summary, schema, parameters in files
    }
    text, data = _content("text/plain; charset=utf-8"), _content("application/octet-stream")
    return {
        **described,
        "/pointers/{tool}/{channel}.tlog-proof": _get("log", "The proof of a pointer's entry", text, tool, channel),
        "/pointers/{tool}/{channel}.event": _get(
            "log", "The log entry of a pointer", _json_response("The entry", {"type": "object"}), tool, channel
        ),
        "/blobs/{cid}": _get("files", "An archive", data, _parameter("cid")),
        "/log/checkpoint": _get("log", "The head of the log (C2SP signed note)", text),
        "/log/tile/{level}/{index}": _get(
            "log",
            "A tile of the log (C2SP tlog-tiles); level `entries` has the entries",
            data,
            _path("level", "A level, or `entries`", _TEXT),
            _path("index", "The index, in groups of three digits; `.p/WIDTH` for a partial tile", _TEXT),
        ),
    }


# Writes


def _describe_writes() -> Json:
    statement = _object({"statement": _ref("Statement")})
    publish = _object(
        {
            "statement": _ref("Statement"),
            "descriptor": {"type": "object"},
            "manifest": {"type": "object"},
            "attestations": _array({"type": "object"}),
        },
        optional=("attestations",),
    )
    changed = _object({"subject": _TEXT, "changed": {"type": "boolean"}})
    published = {"allOf": [_ref("Version"), {"type": "object", "required": ["event"]}]}
    return {
        "/api/blobs/{cid}": {
            "put": _write(
                "Upload an archive",
                "application/octet-stream",
                {},
                _object({"cid": _TEXT, "content_hash": _TEXT}),
                "cid",
            )
        },
        "/api/publish": {"post": _write("Publish a version", "application/json", publish, published)},
        "/api/change": {
            "post": _write("Move a channel, yank a version, or change keys", "application/json", statement, changed)
        },
        "/api/attestations": {
            "post": _write("Add an attestation to a bundle", "application/json", {"type": "object"}, changed)
        },
        "/api/cosignatures": {
            "post": {
                **_write("Add cosignatures of witnesses", "text/plain", _TEXT, _object({"taken": _COUNT})),
                "security": [],
            }
        },
    }


# Parts


def _get(tag: str, summary: str, response: Json, *parameters: Json, errors: tuple[str, ...] = _READ_ERRORS) -> Json:
    operation = {
        "tags": [tag],
        "summary": summary,
        "responses": {"200": response, **{status: _error(status) for status in errors}},
    }
    return {"get": {**operation, "parameters": list(parameters)} if parameters else operation}


def _write(summary: str, media_type: str, body: Json, result: Json, parameter: str | None = None) -> Json:
    operation: Json = {
        "tags": ["publishing"],
        "summary": summary,
        "security": [{"token": []}],
        "requestBody": {"required": True, "content": {media_type: {"schema": body} if body else {}}},
        "responses": {
            "200": _json_response("Done", result),
            **{status: _error(status) for status in _WRITE_ERRORS},
        },
    }
    return {**operation, "parameters": [_parameter(parameter)]} if parameter else operation


def _json_response(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _content(media_type: str) -> Json:
    return {"description": "The bytes", "content": {media_type: {}}}


def _error(status: str) -> Json:
    if status == "408":
        return {"description": _ERRORS[status]}
    return _json_response(_ERRORS[status], _ref("Error"))


def _object(members: Json, optional: tuple[str, ...] = ()) -> Json:
    required = [name for name in members if name not in optional]
    return {"type": "object", "properties": members, "required": required}


def _array(items: Json) -> Json:
    return {"type": "array", "items": items}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _parameter(name: str) -> Json:
    return {"$ref": f"#/components/parameters/{name}"}


def _path(name: str, description: str, schema: Json) -> Json:
    return {"name": name, "in": "path", "required": True, "description": description, "schema": schema}


def _query(name: str, description: str, schema: Json) -> Json:
    return {"name": name, "in": "query", "description": description, "schema": schema}


_METADATA: Json = _object({"count": _COUNT, "nextCursor": _TEXT}, optional=("nextCursor",))
_VERSION: Json = {"type": "string", "pattern": r"^[0-9][0-9A-Za-z.+-]{0,99}$", "examples": ["1.0.0"]}
_CID: Json = {"type": "string", "pattern": "^b[a-z2-7]{58}$"}
_PARAMETERS: Json = {
    "tool": _path("tool", "The name of a bundle", {"type": "string", "pattern": r"^[a-z0-9._-]{1,214}$"}),
    "channel": _path("channel", "The name of a channel", {"type": "string", "pattern": r"^[a-z0-9._-]{1,214}$"}),
    "version": _path("version", "A version", _VERSION),
    "cid": _path("cid", "A content identifier", _CID),
}
_SCHEMAS: Json = {
    "Error": _object({"error": _object({"code": _TEXT, "message": _TEXT, "hint": _NULLABLE_TEXT})}),
    "Identity": _object(
        {
            "schema_version": {"const": IDENTITY_SCHEMA},
            **dict.fromkeys(("name", "log_id", "key_id", "public_key", "checkpoint_key"), _TEXT),
        }
    ),
    "SearchResult": _object(
        {
            "tools": _array(
                _object(
                    {
                        **dict.fromkeys(("tool", "namespace", "description"), _TEXT),
                        "latest": {**_NULLABLE_TEXT, "description": "null if all versions are yanked"},
                        "versions": _COUNT,
                        "published_at_utc": _MOMENT,
                    }
                )
            ),
            "total": _COUNT,
            "page": _COUNT,
            "next": {"type": ["integer", "null"], "description": "the number of the next page"},
        }
    ),
    "Comparison": _object(
        {
            **dict.fromkeys(("tool", "before", "after"), _TEXT),
            "same_content": {"type": "boolean"},
            "files": _object(dict.fromkeys(("added", "removed", "changed"), _array(_TEXT))),
            "api_surface": _object(
                {"before": _NULLABLE_TEXT, "after": _NULLABLE_TEXT, "same": {"type": ["boolean", "null"]}}
            ),
            "drift": {"type": ["object", "null"], "description": "null if a surface is not recorded"},
        }
    ),
    "Version": _object(
        {
            "schema_version": {"const": VERSION_SCHEMA},
            **dict.fromkeys(("tool", "version", "namespace", "description", "root_cid", "descriptor_cid"), _TEXT),
            "archive": _object({"cid": _TEXT, "size_bytes": _COUNT, "media_type": _TEXT, "content_hash": _TEXT}),
            "surface": _object(dict.fromkeys(("api_surface", "cid", "problem"), _NULLABLE_TEXT)),
            "published_at_utc": _MOMENT,
            "published_by": _TEXT,
            "log_index": _COUNT,
            "yanked": _NULLABLE_TEXT,
            "attestations": _array(_TEXT),
        }
    ),
    "Tool": _object(
        {
            "tool": _TEXT,
            "channels": {"type": "object", "additionalProperties": _TEXT},
            "versions": _array({"$ref": "#/components/schemas/Version"}),
        }
    ),
    "Statement": _object(
        {
            **dict.fromkeys(("schema_version", "log_id", "nonce"), _TEXT),
            "action": {"enum": list(ACTIONS)},
            "body": {"type": "object"},
            "issued_at_utc": _MOMENT,
            "signatures": {**_array({"type": "object"}), "minItems": 1, "maxItems": 1},
        }
    ),
}
