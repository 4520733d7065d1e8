"""The HTTP server of a witness: ``POST /add-checkpoint`` (C2SP tlog-witness)."""

from __future__ import annotations

import anyio
import anyio.to_thread
from anyio import CapacityLimiter
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from pinwarden.core.errors import PinwardenError
from pinwarden.registry.witness import MAX_REQUEST_BYTES, Witness

_MAX_RUNNING = 8
_BODY_SECONDS = 10.0


def build_witness_app(witness: Witness) -> Starlette:
    """Return the ASGI application of a witness."""
    limiter: list[CapacityLimiter] = []

    async def add_checkpoint(request: Request) -> Response:
        if not limiter:  # needs a running event loop
            limiter.append(CapacityLimiter(_MAX_RUNNING))
        try:
            with anyio.fail_after(_BODY_SECONDS):
                body = await _read_body(request)
            answer = await anyio.to_thread.run_sync(witness.add_checkpoint, body, limiter=limiter[0])
        except (ClientDisconnect, TimeoutError):
            return Response(status_code=408)
        except PinwardenError as err:
            too_large = err.code == "INPUT_LIMIT"
            return Response("too large\n" if too_large else "the witness failed\n", 413 if too_large else 500)
        return Response(answer.body, answer.status, media_type=answer.media_type)

    async def get_health(_request: Request) -> Response:
        return Response(f"{witness.key}\n", media_type="text/plain; charset=utf-8")

    return Starlette(
        routes=[
            Route("/add-checkpoint", add_checkpoint, methods=["POST"]),
            Route("/healthz", get_health, methods=["GET"]),
        ]
    )


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_REQUEST_BYTES:
            raise PinwardenError("INPUT_LIMIT", f"the request has more than {MAX_REQUEST_BYTES} bytes")
    return bytes(body)
