"""Remembers the documents that an observation rests on, so that the next run can ask whether they changed."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, BinaryIO

from pinwarden.census.observation import RegistryResponse
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.system.net.connections import ServiceEndpoint
from pinwarden.system.net.fetch import DownloadResult, Fetcher, FetchRequest, FetchResponse, RequestPace

if TYPE_CHECKING:
    from pinwarden.census.run_cache import RunCache
    from pinwarden.project.fetch_context import FetchContext

_MAX_RESPONSES = 20  # documents of one package; more would cost more to ask for than to verify the package again
_MAX_URL = 500


class RecordingFetcher(Fetcher):
    """A fetcher for one job, on the connections and with the rules of its worker's fetcher."""

    def __init__(self, shared: Fetcher, cache: RunCache | None = None) -> None:
        self.__dict__.update(shared.__dict__)
        self._cache = cache
        self._responses: list[RegistryResponse] = []
        self._is_complete = True

    @property
    def responses(self) -> tuple[RegistryResponse, ...]:
        """The documents so far; none if one of them cannot be asked for again."""
        return tuple(self._responses) if self._is_complete else ()

    def get(self, wanted: FetchRequest, *, max_bytes: int | None = None) -> FetchResponse:
        """Fetch a document, and remember it."""
        response = self.get_once(wanted, max_bytes=max_bytes)
        is_plain = wanted.authorization is None and len(wanted.url) <= _MAX_URL
        if len(self._responses) >= _MAX_RESPONSES or not is_plain:
            self._is_complete = False
        elif all(row.url != wanted.url for row in self._responses):
            row = RegistryResponse(
                url=wanted.url,
                accept=wanted.accept,
                digest=_digest(response),
                etag=response.headers.get("etag", "")[:_MAX_URL],
            )
            self._responses.append(row)
        return response

    def get_once(self, wanted: FetchRequest, *, max_bytes: int | None = None) -> FetchResponse:
        """Fetch a document, unless this machine fetched it in this run."""
        with nullcontext() if self._cache is None else self._cache.open_entry(wanted) as entry:
            known = None if entry is None else entry.read_document()
            if known is not None:
                return known
            response = super().get(wanted, max_bytes=max_bytes)
            if entry is not None:
                entry.write_document(response)
            return response

    def download(
        self,
        wanted: FetchRequest,
        to: BinaryIO,
        *,
        algorithms: tuple[str, ...] = ("sha256",),
        max_bytes: int | None = None,
    ) -> DownloadResult:
        """Download and hash a file, or copy it if this machine downloaded it in this run."""
        with nullcontext() if self._cache is None else self._cache.open_entry(wanted) as entry:
            known = None if entry is None else entry.read_file(to, algorithms)
            if known is not None:
                return known
            result = super().download(wanted, to, algorithms=algorithms, max_bytes=max_bytes)
            if entry is not None:
                entry.write_file(to, result)
            return result

    def wait_for(self, host: str) -> None:
        """Wait until a request may be sent to a host by something else than this fetcher."""
        pace: RequestPace | None = self._pace
        if pace is not None:
            pace.wait(host)


def is_unchanged(responses: tuple[RegistryResponse, ...], context: FetchContext, fetcher: RecordingFetcher) -> bool:
    """Whether the registries send the same documents as before. False if they cannot be asked."""
    for row in responses:
        endpoint = _find_endpoint(row.url, context)
        try:
            response = fetcher.get_once(FetchRequest(endpoint=endpoint, url=row.url, accept=row.accept, etag=row.etag))
        except PinwardenError:
            return False
        if response.status != 304 and _digest(response) != row.digest:
            return False
    return bool(responses)


def _digest(response: FetchResponse) -> str:
    return str(Digest.of_bytes(b"%d\n%b" % (response.status, response.body)))


def _find_endpoint(url: str, context: FetchContext) -> ServiceEndpoint:
    """Return the user's registry that a document is from. Another host gets no credentials."""
    for endpoint in (context.sources.find_npm_registry("x"), context.sources.find_pypi_index()):
        if url.startswith(endpoint.url):
            return endpoint
    return ServiceEndpoint(url=url, configured_by="project")
