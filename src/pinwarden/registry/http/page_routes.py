"""Serve the pages for people. A page is built in the pool for reads; a comparison takes its turn with others."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pinwarden.core.errors import PinwardenError
from pinwarden.html.pages import ASSETS, PAGE_HEADERS
from pinwarden.registry.http.comparisons import Comparisons, identify_client
from pinwarden.registry.http.routes import build_error_response, choose_status_code, find_base_url, refuse_nul_bytes
from pinwarden.registry.names import check_tool, check_version
from pinwarden.registry.pages.compare_page import build_compare_page
from pinwarden.registry.pages.page_request import PageRequest
from pinwarden.registry.pages.site import COMPARISON_PATH, RenderedPage, find_page, has_page_path, render, render_error
from pinwarden.registry.registry import Registry

_COMPARE_FORM = re.compile(r"bundles/([^/]+)/compare/")
_PATHS = ("/", "/bundles/{path:path}", "/publishers/{path:path}", "/log/{path:path}", "/feed.atom", "/assets/{path}")


class PageRoutes:
    """Handles requests for pages. Used only on the event loop."""

    def __init__(self, registry: Registry, run_read: Callable[..., Awaitable[Any]], comparisons: Comparisons) -> None:
        self._registry = registry
        self._run_read = run_read
        self._comparisons = comparisons

    def build_routes(self) -> list[Route]:
        """Return the routes of all pages."""
        return [Route(path, self.respond, methods=["GET"]) for path in _PATHS]

    async def respond(self, request: Request, err: Exception | None = None) -> Response:
        """Return the page at the path of a request, or an error: as a page for browsers, as JSON for programs.

        ``err`` is the error of the routing.
        """
        page_request = PageRequest(
            path=request.url.path[1:],
            query=dict(request.query_params),
            base_url=find_base_url(self._registry, request),
        )
        try:
            refuse_nul_bytes(request)
            target = _find_redirect(page_request)
            if target is not None:
                return Response(status_code=303, headers={"location": target})
            page = None if err else await self._find_page(page_request, identify_client(request))
            if page is None:
                hint = "Check the name and the version, or search for it."
                raise PinwardenError("SERVER_NOT_FOUND", "There is nothing at this address.", hint=hint)
        except PinwardenError as problem:
            if "text/html" not in request.headers.get("accept", ""):
                return build_error_response(problem)
            status = choose_status_code(problem)
            page = render_error(self._registry, page_request, problem, status)
            return _build_response(page, status, "no-store")
        return _build_response(page, 200, "public, max-age=3600" if page_request.path in ASSETS else "no-cache")

    async def _find_page(self, request: PageRequest, client: str) -> RenderedPage | None:
        compared = COMPARISON_PATH.fullmatch(request.path)
        if compared is None:
            page: RenderedPage | None = await self._run_read(find_page, self._registry, request)
            return page
        tool, before, after = compared.groups()
        members = await self._comparisons.compare(tool, before, after, client)
        rendered: RenderedPage = await self._run_read(
            _render_comparison, self._registry, request, (tool, before, after), members
        )
        return rendered


def _render_comparison(
    registry: Registry, request: PageRequest, versions: Sequence[str], members: Mapping[str, bytes]
) -> RenderedPage:
    compared = {name: json.loads(value) for name, value in members.items()}
    return render(registry, request, build_compare_page(versions, compared))


def _find_redirect(request: PageRequest) -> str | None:
    """Return the relative address of the page that was meant; None if the path is that of a page."""
    form = _COMPARE_FORM.fullmatch(request.path)
    if form is not None and {"before", "after"} <= request.query.keys():
        check_tool(form[1])
        return f"{check_version(request.query['before'])}/{check_version(request.query['after'])}/"
    if not request.path.endswith("/") and not has_page_path(request.path) and has_page_path(f"{request.path}/"):
        return f"{request.path.rpartition('/')[2]}/"
    return None


def _build_response(page: RenderedPage, status: int, cache: str) -> Response:
    headers = {**PAGE_HEADERS, "cache-control": cache}
    return Response(page.body, status_code=status, media_type=page.media_type, headers=headers)
