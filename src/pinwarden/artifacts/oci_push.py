"""Putting blobs and manifests into a container registry."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urljoin

from pinwarden.artifacts.oci_manifest import OCI_MANIFEST
from pinwarden.artifacts.oci_registry import Registry
from pinwarden.core.canonical import canonicalize
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.system.net.fetch import Answer, Sent, Wanted
from pinwarden.system.net.fetch_failures import unfetched
from pinwarden.system.target import Address

EMPTY = b"{}"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
"""The config of what is no image (OCI image specification 1.1)."""
_BYTES = "application/octet-stream"


class PushRegistry(Registry):
    """One repository that can be written to."""

    actions = "pull,push"

    def put_blob(self, data: bytes) -> Digest:
        """Put bytes there, and return their digest. The same bytes again do no harm."""
        digest = Digest.of(data)
        begun = self._send("POST", self._url("blobs/uploads/"), b"", _BYTES)
        place = self._upload_place(begun)
        self._send("PUT", f"{place}{'&' if '?' in place else '?'}digest={digest}", data, _BYTES)
        return digest

    def put_artifact(
        self,
        tag: str,
        artifact_type: str,
        blobs: list[tuple[str, bytes]],
        annotations: Mapping[str, str] | None = None,
    ) -> Digest:
        """Put blobs (media type and bytes) there, and a manifest under a tag that keeps them from being swept away."""
        config = self.put_blob(EMPTY)
        manifest: dict[str, object] = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "artifactType": artifact_type,
            "config": {"mediaType": EMPTY_TYPE, "digest": str(config), "size": len(EMPTY)},
            "layers": [
                {"mediaType": media_type, "digest": str(self.put_blob(data)), "size": len(data)}
                for media_type, data in blobs
            ],
        }
        if annotations:
            manifest["annotations"] = dict(annotations)
        body = canonicalize(manifest)
        self._send("PUT", self._url(f"manifests/{tag}"), body, OCI_MANIFEST)
        return Digest.of(body)

    def _upload_place(self, begun: Answer) -> str:
        """Where the registry wants the bytes: somewhere below itself, or the token would go astray."""
        place = urljoin(self._url("blobs/uploads/"), begun.headers.get("location", ""))
        try:
            mine = self._endpoint.owns(Address.parse(place))
        except PinwardenError:
            mine = False
        if not mine:
            raise unfetched("protocol", f"{self._endpoint.address} wants an upload to go elsewhere")
        return place

    def _send(self, method: str, url: str, body: bytes, media_type: str) -> Answer:
        sent = Sent(method=method, body=body, media_type=media_type)

        def send(wanted: Wanted) -> Answer:
            answer = self._fetcher.send(replace(wanted, sent=sent))
            if answer.status not in (200, 201, 202, 204):
                reason = "unauthorized" if answer.status in (401, 403) else "status"
                raise unfetched(reason, f"{answer.address} answered with status {answer.status}", answer.status)
            return answer

        return self._answered(Wanted(endpoint=self._endpoint, url=url), send)
