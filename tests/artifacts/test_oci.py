"""Container images against a real registry, with what its owner, a thief of its disk, or a liar could do."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from pinwarden import Digest, PinwardenError
from pinwarden.artifacts.artifact import (
    ArtifactAttestation,
    ArtifactFile,
    ArtifactProblem,
    FetchedArtifact,
    FetchedImage,
    PackageRef,
    ReleaseFacts,
)
from pinwarden.artifacts.oci import ImageOptions, fetch_artifact, fetch_image, save_layout
from pinwarden.artifacts.oci_manifest import OciDescriptor
from pinwarden.artifacts.oci_reference import parse_reference
from pinwarden.artifacts.oci_registry import OciRegistry, RegistryTokens
from pinwarden.system.net.connections import ServiceEndpoint
from pinwarden.system.net.fetch import Fetcher, FetchLimits, FetchRules
from tests.support import images
from tests.support.images import Blob, BuiltImage, image, index, platform_members, push, push_index, resolve, text_of
from tests.support.registries import (
    Asked,
    DockerRegistry,
    Reply,
    Scripted,
    docker_registry,
    needs_htpasswd,
    needs_registry,
    needs_skopeo,
    scripted,
)

NOW = "2026-11-16T00:00:00Z"
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
EMPTY = Blob(data=b"{}", media_type="application/vnd.oci.empty.v1+json")
ALICE = "Basic " + base64.b64encode(b"alice:correct horse").decode()
ONE_TRY = FetchRules(limits=FetchLimits(attempts=1))


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRegistry]:
    with docker_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A repository of its own for each test."""
    return "test/r" + Digest.of_bytes(request.node.nodeid.encode()).hex[:16]


@pytest.fixture
def fetcher() -> Iterator[Fetcher]:
    made = Fetcher(ONE_TRY)
    yield made
    made.close()


def endpoint(host: str, authorization: str | None = None, ca_file: Path | None = None) -> ServiceEndpoint:
    return ServiceEndpoint(
        url=f"http://{host}/v2/", configured_by="argument", authorization=authorization, ca_file=ca_file
    )


def package(reference: str) -> PackageRef:
    return PackageRef(ecosystem="oci", name=reference)


def opened(reference: str, fetcher: Fetcher, authorization: str | None = None) -> OciRegistry:
    parsed = parse_reference(reference)
    return OciRegistry(parsed, fetcher, endpoint(parsed.host, authorization))


def fetch_reference(reference: str, fetcher: Fetcher, **wish: Any) -> FetchedArtifact:
    wished = ImageOptions(**{"attestations": False, **wish})
    return fetch_image(package(reference), opened(reference, fetcher), wished, now=NOW)


def image_of(found: FetchedArtifact) -> FetchedImage:
    assert found.image is not None
    return found.image


def shown(built: BuiltImage) -> OciDescriptor:
    return OciDescriptor(media_type=built.manifest.media_type, digest=built.digest, size=len(built.manifest.data))


def hashed(blob: Blob, data: bytes | None = None) -> ArtifactFile:
    data = blob.data if data is None else data
    digests = (
        (Digest.of_bytes(data),)
        if blob.algorithm == "sha256"
        else (Digest.of_bytes(data), Digest.of_bytes(data, blob.algorithm))
    )
    return ArtifactFile(name=str(blob.digest), size=len(data), digests=digests, claims=(blob.digest,))


def refused(act: Callable[[], object]) -> PinwardenError:
    with pytest.raises(PinwardenError) as caught:
        act()
    return caught.value


# What is there


@needs_registry
@pytest.mark.parametrize("docker", [False, True])
def test_an_image_is_its_manifest_and_config_hashed_here(
    registry: DockerRegistry, name: str, fetcher: Fetcher, docker: bool, tmp_path: Path
) -> None:
    built = image("one", docker=docker, labels={"org.opencontainers.image.source": "https://github.com/a/b"})
    push(registry, name, "v1", built)
    reference = f"{registry.host}/{name}:v1"
    found = fetch_artifact(package(reference), fetcher, endpoint(registry.host), now=NOW, save_folder=tmp_path)
    assert found == FetchedArtifact(
        package=package(reference),
        registry=f"http://{registry.host}/v2/",
        checked_at=NOW,
        files=(hashed(built.config),),
        image=FetchedImage(
            reference=reference,
            root=built.digest,
            index=None,
            platforms={"linux/amd64": shown(built)},
            tag_digest=built.digest,
        ),
        facts=ReleaseFacts(repository="https://github.com/a/b"),
    )
    kept = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert kept == {blob.digest.hex: blob.data for blob in (built.manifest, built.config)}


@needs_registry
def test_layers_are_hashed_on_request(registry: DockerRegistry, name: str, fetcher: Fetcher, tmp_path: Path) -> None:
    built = image("one")
    push(registry, name, "v1", built)
    reference = f"{registry.host}/{name}:v1"
    found = fetch_image(
        package(reference), opened(reference, fetcher), ImageOptions(layers=True), now=NOW, save_folder=tmp_path
    )
    assert found.files == (hashed(built.config), hashed(built.layers[0]))
    assert (tmp_path / built.layers[0].digest.hex).read_bytes() == built.layers[0].data


@needs_registry
@pytest.mark.parametrize("docker", [False, True])
def test_an_index_has_its_own_digest_beside_those_of_its_platforms(
    registry: DockerRegistry, name: str, fetcher: Fetcher, docker: bool
) -> None:
    built = {each: image("many", platform=each, docker=docker) for each in ("linux/amd64", "linux/arm64/v8")}
    note = image("an attestation of a build tool", platform="unknown/unknown", docker=docker)
    push(registry, name, str(note.digest), note)
    listed = note.manifest.described(platform=platform_members("unknown/unknown"))
    whole = index(built, docker=docker, extra=(listed,))
    push_index(registry, name, "v1", built, whole)
    found = fetch_reference(f"{registry.host}/{name}:v1", fetcher)
    assert image_of(found) == FetchedImage(
        reference=f"{registry.host}/{name}:v1",
        root=whole.digest,
        index=OciDescriptor(media_type=whole.media_type, digest=whole.digest, size=len(whole.data)),
        platforms={each: shown(built[each]) for each in built},
        tag_digest=whole.digest,
    )
    assert found.problems == ()

    only = fetch_reference(f"{registry.host}/{name}@{whole.digest}", fetcher, platforms=("linux/arm64",))
    assert image_of(only).platforms == {"linux/arm64/v8": shown(built["linux/arm64/v8"])}
    assert only.files == (hashed(built["linux/arm64/v8"].config),)
    none = fetch_reference(f"{registry.host}/{name}:v1", fetcher, platforms=("linux/s390x",))
    assert none.problems == (
        ArtifactProblem(code="oci_platform_missing", message="the image does not support the platform 'linux/s390x'"),
    )


@needs_registry
def test_an_image_or_tag_that_is_not_there_is_missing(registry: DockerRegistry, name: str, fetcher: Fetcher) -> None:
    push(registry, name, "v1", image("one"))
    assert fetch_reference(f"{registry.host}/{name}:v2", fetcher).missing == "version"
    assert fetch_reference(f"{registry.host}/{name}/none:v1", fetcher).missing == "package"


def resolve_text(reference: str, fetcher: Fetcher) -> Digest:
    parsed = parse_reference(reference)
    return resolve(parsed, fetcher, endpoint(parsed.host))


@needs_registry
@needs_skopeo
def test_attack_a_moved_tag_is_seen_and_the_digest_still_gives_what_was_approved(
    registry: DockerRegistry, name: str, fetcher: Fetcher, tmp_path: Path
) -> None:
    approved, other = image("approved"), image("other")
    for number, built in enumerate((approved, other)):
        images.write_layout(tmp_path / str(number), built, "v1")
        source, target = f"oci:{tmp_path / str(number)}:v1", f"docker://{registry.host}/{name}:v1"
        subprocess.run(["skopeo", "copy", "-q", "--dest-tls-verify=false", source, target], check=True, timeout=240)
        assert resolve_text(f"{registry.host}/{name}:v1", fetcher) == built.digest
    found = image_of(fetch_reference(f"{registry.host}/{name}:v1@{approved.digest}", fetcher))
    assert (found.root, found.tag_digest) == (approved.digest, other.digest)
    assert found.platforms == {"linux/amd64": shown(approved)}


def test_a_tag_is_resolved_with_one_request() -> None:
    with scripted() as server, closing(ONE_TRY) as fetcher:
        built = image("one")
        serve(server, {"manifests/v1": built.manifest})
        assert resolve_text(f"{server.host}/a/b:v1", fetcher) == built.digest
        assert [asked.path for asked in server.asked] == ["/v2/a/b/manifests/v1"]


# Bytes that are not what their digest says


@needs_registry
def test_attack_a_manifest_changed_on_disk_is_found_though_the_header_claims_the_old_digest(
    registry: DockerRegistry, name: str, fetcher: Fetcher, tmp_path: Path
) -> None:
    built = image(f"a manifest of {name}")
    push(registry, name, "v1", built)
    changed = image("smuggled in").manifest.data
    registry.blob_file(str(built.digest)).write_bytes(changed)
    for reference in (f"{registry.host}/{name}:v1", f"{registry.host}/{name}@{built.digest}"):
        found = fetch_artifact(package(reference), fetcher, endpoint(registry.host), now=NOW, save_folder=tmp_path)
        assert image_of(found) == FetchedImage(
            reference=reference,
            root=Digest.of_bytes(changed),
            index=None,
            platforms={},
            tag_digest=None if "@" in reference else Digest.of_bytes(changed),
            mismatches=(str(built.digest),),
        )
        assert found.files == ()
        assert resolve_text(reference, fetcher) == Digest.of_bytes(changed)
    assert list(tmp_path.iterdir()) == []


@needs_registry
def test_attack_a_platform_manifest_changed_on_disk_below_an_honest_index_is_found(
    registry: DockerRegistry, name: str, fetcher: Fetcher
) -> None:
    built = {each: image(f"below {name}", platform=each) for each in ("linux/amd64", "linux/arm64")}
    whole = index(built)
    push_index(registry, name, "v1", built, whole)
    victim = built["linux/arm64"]
    registry.blob_file(str(victim.digest)).write_bytes(image("smuggled in").manifest.data)
    found = image_of(fetch_reference(f"{registry.host}/{name}@{whole.digest}", fetcher))
    assert found.mismatches == (str(victim.digest),)
    assert found.platforms == {"linux/amd64": shown(built["linux/amd64"])}


@needs_registry
@pytest.mark.parametrize("change", [lambda data: b"X" + data[1:], lambda data: data[:-1]], ids=["changed", "shorter"])
def test_attack_a_layer_changed_on_disk_is_found(
    registry: DockerRegistry, name: str, fetcher: Fetcher, change: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    built = image(f"a layer of {name}")
    push(registry, name, "v1", built)
    victim = built.layers[0]
    registry.blob_file(str(victim.digest)).write_bytes(change(victim.data))
    reference = f"{registry.host}/{name}:v1"
    found = fetch_image(
        package(reference), opened(reference, fetcher), ImageOptions(layers=True), now=NOW, save_folder=tmp_path
    )
    assert image_of(found).mismatches == (str(victim.digest),)
    assert found.files == (hashed(built.config), hashed(victim, change(victim.data)))
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([built.digest.hex, built.config.digest.hex])


@needs_registry
def test_attack_a_layer_larger_than_stated_in_its_manifest_is_refused(
    registry: DockerRegistry, name: str, fetcher: Fetcher
) -> None:
    built = image(f"a longer layer of {name}")
    push(registry, name, "v1", built)
    victim = built.layers[0]
    registry.blob_file(str(victim.digest)).write_bytes(victim.data + b"more")
    found = fetch_reference(f"{registry.host}/{name}:v1", fetcher, layers=True)
    assert image_of(found).mismatches == (str(victim.digest),)
    assert found.files == (hashed(built.config),)


@needs_registry
def test_attack_a_config_changed_on_disk_is_found_and_not_read(
    registry: DockerRegistry, name: str, fetcher: Fetcher
) -> None:
    built = image(f"a config of {name}")
    push(registry, name, "v1", built)
    other = built.config.data.replace(b"amd64", b"arm64")
    registry.blob_file(str(built.config.digest)).write_bytes(other)
    found = fetch_reference(f"{registry.host}/{name}:v1", fetcher)
    assert image_of(found).mismatches == (str(built.config.digest),)
    assert image_of(found).platforms == {}
    assert found.files == (hashed(built.config, other),)


def test_attack_a_header_that_claims_another_digest_is_recorded_and_by_digest_the_bytes_decide() -> None:
    built, other = image("one"), image("other")
    with scripted() as server, closing(ONE_TRY) as fetcher:
        claim = {"docker-content-digest": str(other.digest)}
        serve(server, contents(built) | {"manifests/v1": built.manifest}, claim)
        by_tag = image_of(fetch_reference(f"{server.host}/a/b:v1", fetcher))
        by_digest = image_of(fetch_reference(f"{server.host}/a/b@{built.digest}", fetcher))
    assert (by_tag.root, by_tag.platforms, by_tag.mismatches) == (built.digest, {}, (str(other.digest),))
    assert (by_digest.root, by_digest.platforms) == (built.digest, {"linux/amd64": shown(built)})
    assert by_digest.mismatches == (str(other.digest),)


# Documents that cannot be meant


def test_attack_an_oversized_manifest_is_refused(fetcher: Fetcher) -> None:
    built = image("grown")
    grown = replace(built.manifest, data=built.manifest.data + b" " * (4 * 1024 * 1024))
    with scripted() as server:
        for place in ("manifests/v1", f"manifests/{built.digest}"):
            serve(server, contents(built) | {"manifests/v1": index({"linux/amd64": built}), place: grown})
            assert refused(lambda: fetch_reference(f"{server.host}/a/b:v1", fetcher)).code == "FETCH_LIMIT"


@needs_registry
def test_attack_a_manifest_with_a_member_twice_is_refused(
    registry: DockerRegistry, name: str, fetcher: Fetcher
) -> None:
    built = image("twice")
    push(registry, name, "v1", built)
    twice = built.manifest.data.replace(b'"layers"', b'"layers": [], "layers"')
    registry.put_manifest(name, "v1", twice, images.OCI_MANIFEST)
    error = refused(lambda: fetch_reference(f"{registry.host}/{name}:v1", fetcher))
    assert error.code == "JSON_CANONICALIZATION_ERROR"


@needs_registry
def test_a_platform_that_the_index_lists_and_the_registry_lacks_is_a_problem(
    registry: DockerRegistry, name: str, fetcher: Fetcher
) -> None:
    built = {each: image(f"absent {name}", platform=each) for each in ("linux/amd64", "linux/arm64")}
    whole = index(built)
    push_index(registry, name, "v1", built, whole)
    absent = built["linux/arm64"].digest
    revisions = registry.data / "docker/registry/v2/repositories" / name / "_manifests/revisions/sha256"
    (revisions / absent.hex / "link").unlink()
    found = fetch_reference(f"{registry.host}/{name}:v1", fetcher)
    message = f"the registry does not have the manifest for linux/arm64 of the image: {absent}"
    assert found.problems == (ArtifactProblem(code="oci_content_missing", message=message),)
    assert image_of(found).platforms == {"linux/amd64": shown(built["linux/amd64"])}
    assert fetch_reference(f"{registry.host}/{name}:v1", fetcher, platforms=("linux/arm64",)).problems == found.problems
    assert fetch_reference(f"{registry.host}/{name}:v1", fetcher, platforms=("linux/amd64",)).problems == ()


def test_attack_media_type_confusion_is_refused_at_the_root_and_below_an_index() -> None:
    built = image("one")
    whole = index({"linux/amd64": built})
    as_manifest = replace(whole, media_type=images.OCI_MANIFEST)
    lying_list = index({"linux/amd64": replace(built, manifest=as_manifest)})
    lying_header = replace(built.manifest, media_type=images.DOCKER_MANIFEST)
    nested = index({"linux/amd64": replace(built, manifest=whole)})
    cases: list[dict[str, Blob]] = [
        {"manifests/v1": as_manifest},
        {"manifests/v1": lying_list, f"manifests/{whole.digest}": as_manifest},
        {"manifests/v1": whole, f"manifests/{built.digest}": lying_header},
        {"manifests/v1": nested, f"manifests/{whole.digest}": whole},
    ]
    for case in cases:
        with scripted() as server, closing(ONE_TRY) as fetcher:
            serve(server, contents(built) | case)
            error = refused(lambda: fetch_reference(f"{server.host}/a/b:v1", fetcher))
            assert error.code == "IMAGE_INVALID"


def test_attack_two_manifests_for_one_platform_are_refused() -> None:
    first, second = image("first"), image("second")
    extra = second.manifest.described(platform=platform_members("linux/amd64"))
    whole = index({"linux/amd64": first}, extra=(extra,))
    with scripted() as server, closing(ONE_TRY) as fetcher:
        serve(server, contents(first) | contents(second) | {"manifests/v1": whole})
        assert refused(lambda: fetch_reference(f"{server.host}/a/b:v1", fetcher)).code == "IMAGE_INVALID"


def test_an_entry_without_platform_uses_the_platform_in_its_config() -> None:
    built = image("unnamed", platform="linux/arm64")
    whole = index({}, extra=(built.manifest.described(),))
    with scripted() as server, closing(ONE_TRY) as fetcher:
        serve(server, contents(built) | {"manifests/v1": whole})
        assert image_of(fetch_reference(f"{server.host}/a/b:v1", fetcher)).platforms == {"linux/arm64": shown(built)}


def test_sha512_is_followed_with_sha512_and_every_other_algorithm_is_refused() -> None:
    built = image("long", algorithm="sha512")
    with scripted() as server, closing(ONE_TRY) as fetcher:
        serve(server, contents(built))
        found = fetch_reference(f"{server.host}/a/b@{built.digest}", fetcher, layers=True)
        assert (image_of(found).root, image_of(found).mismatches) == (built.digest, ())
        assert found.files == (hashed(built.config), hashed(built.layers[0]))
        wrong = replace(built.layers[0], data=b"X" + built.layers[0].data[1:])
        serve(server, contents(built) | {f"blobs/{built.layers[0].digest}": wrong})
        bad = fetch_reference(f"{server.host}/a/b@{built.digest}", fetcher, layers=True)
        assert image_of(bad).mismatches == (str(built.layers[0].digest),)
        weak = text_of(json.loads(built.manifest.data) | {"layers": [built.layers[0].described(digest="md5:00")]})
        serve(server, contents(built) | {"manifests/v1": Blob(data=weak, media_type=images.OCI_MANIFEST)})
        assert refused(lambda: fetch_reference(f"{server.host}/a/b:v1", fetcher)).code == "DIGEST_INVALID"
        serve(server, {"manifests/v1": built.manifest}, {"docker-content-digest": "md5:00"})
        assert refused(lambda: fetch_reference(f"{server.host}/a/b:v1", fetcher)).code == "DIGEST_INVALID"


# Who asks


@needs_registry
@needs_htpasswd
def test_basic_credentials_open_a_registry_and_wrong_or_no_ones_do_not(tmp_path: Path, fetcher: Fetcher) -> None:
    users = subprocess.run(["htpasswd", "-Bbn", "alice", "correct horse"], check=True, capture_output=True).stdout
    (tmp_path / "users").write_bytes(users)
    auth = {"htpasswd": {"realm": "lab", "path": str(tmp_path / "users")}}
    built = image("guarded")
    with docker_registry(tmp_path, auth=auth, headers={"authorization": ALICE}) as guarded:
        push(guarded, "a/b", "v1", built)
        reference = parse_reference(f"{guarded.host}/a/b:v1")
        assert resolve(reference, fetcher, endpoint(guarded.host, ALICE)) == built.digest
        whole = fetch_image(
            package(str(reference)),
            OciRegistry(reference, fetcher, endpoint(guarded.host, ALICE)),
            ImageOptions(layers=True),
            now=NOW,
        )
        assert whole.files == (hashed(built.config), hashed(built.layers[0]))
        wrong = "Basic " + base64.b64encode(b"alice:hunter2hunter2").decode()
        for credential in (wrong, None):
            error = refused(lambda: resolve(reference, fetcher, endpoint(guarded.host, credential)))  # noqa: B023
            assert (error.code, error.data) == ("FETCH_FAILED", {"reason": "unauthorized", "status": 401})
            assert "hunter2" not in str(error) + repr(error.data)


class TokenServer:
    """Gives out tokens as registries want them: signed, for a while, for one repository."""

    def __init__(self, server: Scripted, folder: Path) -> None:
        self.host = server.host
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = certificate(self.key, "issuer")
        self.file = folder / "issuer.pem"
        self.file.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        self.seconds = 300
        self.server = server
        server.answer = self.answer

    @property
    def settings(self) -> dict[str, Any]:
        realm = f"http://{self.host}/token"
        return {"token": {"realm": realm, "service": "lab", "issuer": "lab-issuer", "rootcertbundle": str(self.file)}}

    def answer(self, asked: Asked) -> Reply:
        if asked.headers.get("authorization") != ALICE:
            return Reply(status=401)
        query = parse_qs(urlsplit(asked.path).query)
        kind, name, actions = query["scope"][0].split(":")
        return Reply(body=json.dumps({"token": self.token(kind, name, actions)}).encode())

    def token(self, kind: str, name: str, actions: str) -> str:
        now = int(datetime.now(UTC).timestamp())
        claims = {
            "iss": "lab-issuer",
            "sub": "alice",
            "aud": "lab",
            "exp": now + self.seconds,
            "nbf": now - 600,
            "iat": now - 600,
            "jti": "1",
            "access": [{"type": kind, "name": name, "actions": actions.split(",")}],
        }
        der = self.certificate.public_bytes(serialization.Encoding.DER)
        head = {"typ": "JWT", "alg": "ES256", "x5c": [base64.b64encode(der).decode()]}
        signed = ".".join(base64url(json.dumps(part).encode()) for part in (head, claims))
        r, s = decode_dss_signature(self.key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{base64url(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def certificate(key: ec.EllipticCurvePrivateKey, name: str, *, hosts: tuple[str, ...] = ()) -> x509.Certificate:
    """A certificate that signs itself."""
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    start = datetime.now(UTC) - timedelta(days=1)
    names = [x509.DNSName(each) for each in hosts] + [x509.IPAddress(IPv4Address("127.0.0.1"))]
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=3))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )


@needs_registry
def test_a_bearer_token_is_requested_once_per_repository_and_renewed_after_expiry(
    tmp_path: Path, fetcher: Fetcher
) -> None:
    built = image("guarded")
    with scripted() as server:
        issuer = TokenServer(server, tmp_path)
        pushing = {"authorization": "Bearer " + issuer.token("repository", "a/b", "pull,push")}
        with docker_registry(tmp_path, auth=issuer.settings, headers=pushing) as guarded:
            push(guarded, "a/b", "v1", built)
            reference = parse_reference(f"{guarded.host}/a/b:v1")
            tokens = RegistryTokens()
            issuer.seconds = -300  # a token that has run out when it is used again
            first = refused(lambda: resolve(reference, fetcher, endpoint(guarded.host, ALICE), tokens=tokens))
            assert first.data == {"reason": "unauthorized", "status": 401}
            said = "UNAUTHORIZED: authentication required"
            assert first.message == f"http://{guarded.host}/v2/a/b/manifests/v1 responded with status 401: {said}"
            issuer.seconds = 300
            server.asked.clear()
            asking = OciRegistry(reference, fetcher, endpoint(guarded.host, ALICE), tokens)
            found = fetch_image(package(str(reference)), asking, ImageOptions(layers=True, attestations=False), now=NOW)
            assert found.files == (hashed(built.config), hashed(built.layers[0]))
            assert resolve(reference, fetcher, endpoint(guarded.host, ALICE), tokens=tokens) == built.digest
            assert [asked.path for asked in server.asked] == [
                "/token?account=alice&service=lab&scope=repository%3Aa%2Fb%3Apull"
            ]
            assert server.authorizations() == [ALICE]
            assert "correct" not in repr(asking) + repr(tokens)

            other = "Basic " + base64.b64encode(b"mallory:guess").decode()
            for credential in (other, None):
                error = refused(
                    lambda: resolve(reference, fetcher, endpoint(guarded.host, credential), tokens=tokens)  # noqa: B023
                )
                assert (error.code, error.data) == ("FETCH_FAILED", {"reason": "unauthorized", "status": 401})


def challenging(server: Scripted, realm: str, blobs: dict[str, Blob]) -> None:
    """A registry that wants a token from a realm."""
    serve(server, blobs)
    give = server.answer

    def answer(asked: Asked) -> Reply:
        if asked.headers.get("authorization") == "Bearer a-token":
            return give(asked)
        challenge = f'Bearer realm="{realm}",service="s",scope="repository:everything:pull,push,delete"'
        return Reply(status=401, headers={"www-authenticate": challenge})

    server.answer = answer


def giving_tokens(_: Asked) -> Reply:
    return Reply(body=b'{"access_token": "a-token", "expires_in": 60}')


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's certificate for localhost, and the file that makes a client believe it."""
    key = ec.generate_private_key(ec.SECP256R1())
    made = certificate(key, "localhost", hosts=("localhost",))
    trusted = tmp_path / "ca.crt"
    trusted.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "server.pem").write_bytes(private + trusted.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    return context, trusted


def test_attack_a_token_realm_on_a_foreign_host_gets_no_credential(tls: tuple[ssl.SSLContext, Path]) -> None:
    built = image("one")
    with scripted() as server, scripted(tls=tls[0], name="localhost") as foreign:
        foreign.answer = giving_tokens
        challenging(server, f"https://{foreign.host}/token", {"manifests/v1": built.manifest})
        reference = parse_reference(f"{server.host}/a/b:v1")
        asking = endpoint(server.host, ALICE, tls[1])
        # Not the registry's own: it may not even lead into a private network, unless the user allows all of them.
        with closing(ONE_TRY) as fetcher:
            assert refused(lambda: resolve(reference, fetcher, asking)).code == "ADDRESS_REFUSED"
        assert foreign.asked == []
        with closing(FetchRules(allow_private=True, limits=ONE_TRY.limits)) as fetcher:
            assert resolve(reference, fetcher, asking) == built.digest
        assert foreign.authorizations() == [None]
        assert [asked.path for asked in foreign.asked] == ["/token?service=s&scope=repository%3Aa%2Fb%3Apull"]
        assert ALICE not in server.authorizations()


def test_attack_a_token_realm_over_plain_http_is_not_contacted(fetcher: Fetcher) -> None:
    with scripted() as server, scripted(name="localhost") as foreign:
        challenging(server, f"http://{foreign.host}/token", {})
        reference = parse_reference(f"{server.host}/a/b:v1")
        error = refused(lambda: resolve(reference, fetcher, endpoint(server.host, ALICE)))
        assert (error.code, error.data) == ("FETCH_FAILED", {"reason": "protocol"})
        assert foreign.asked == []


def test_an_identity_token_is_exchanged_and_never_sent_to_the_registry(fetcher: Fetcher) -> None:
    built = image("one")
    identity = "Basic " + base64.b64encode(b"<token>:my-identity").decode()
    with scripted() as server, scripted() as realm:
        realm.answer = giving_tokens
        challenging(server, f"http://{realm.host}/token", {"manifests/v1": built.manifest})
        reference = parse_reference(f"{server.host}/a/b:v1")
        assert resolve(reference, fetcher, endpoint(server.host, identity)) == built.digest
        assert [(asked.method, asked.path) for asked in realm.asked] == [("POST", "/token")]
        assert parse_qs(realm.asked[0].body.decode()) == {
            "grant_type": ["refresh_token"],
            "client_id": ["pinwarden"],
            "refresh_token": ["my-identity"],
            "service": ["s"],
            "scope": ["repository:a/b:pull"],
        }
        assert server.authorizations() == [None, "Bearer a-token"]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"token": 1}', b'{"token": "a\\r\\nb: c"}', b'{"token":"a","token":"b"}']
)
def test_attack_something_that_is_not_a_token_is_never_put_into_a_header(fetcher: Fetcher, body: bytes) -> None:
    with scripted() as server, scripted() as realm:
        realm.answer = lambda _: Reply(body=body)
        challenging(server, f"http://{realm.host}/token", {})
        error = refused(lambda: resolve_text(f"{server.host}/a/b:v1", fetcher))
        assert (error.code, error.data) == ("FETCH_FAILED", {"reason": "protocol"})


def test_attack_a_blob_redirect_to_another_host_gets_no_authorization(fetcher: Fetcher) -> None:
    built = image("one")
    with scripted() as server, scripted() as storage:
        serve(storage, contents(built))
        serve(server, contents(built))
        give = server.answer

        def answer(asked: Asked) -> Reply:
            if asked.headers.get("authorization") != ALICE:
                return Reply(status=401, headers={"www-authenticate": 'Basic realm="x"'})
            if "/blobs/" in asked.path:
                return Reply(status=307, headers={"location": f"http://{storage.host}{asked.path}"})
            return give(asked)

        server.answer = answer
        registry = opened(f"{server.host}/a/b@{built.digest}", fetcher, ALICE)
        wish = ImageOptions(layers=True, attestations=False)
        found = fetch_image(package(str(registry.reference)), registry, wish, now=NOW)
        assert found.files == (hashed(built.config), hashed(built.layers[0]))
        assert storage.authorizations() == [None, None]


def test_an_identity_token_is_not_sent_as_a_password(fetcher: Fetcher) -> None:
    identity = "Basic " + base64.b64encode(b"<token>:my-identity").decode()
    with scripted() as server:
        server.answer = lambda _: Reply(status=401, headers={"www-authenticate": 'Basic realm="x"'})
        reference = parse_reference(f"{server.host}/a/b:v1")
        error = refused(lambda: resolve(reference, fetcher, endpoint(server.host, identity)))
        assert error.data == {"reason": "unauthorized", "status": 401}
        assert set(server.authorizations()) == {None}


def test_a_registry_without_a_challenge_gets_no_credential(fetcher: Fetcher) -> None:
    built = image("open")
    with scripted() as server:
        serve(server, contents(built))
        registry = opened(f"{server.host}/a/b@{built.digest}", fetcher, ALICE)
        found = fetch_image(package("x"), registry, ImageOptions(layers=True, attestations=False), now=NOW)
        assert found.files == (hashed(built.config), hashed(built.layers[0]))
        assert server.authorizations() == [None] * 4


# What others say about an image


def referrer(subject: Digest, blobs: tuple[Blob, ...], **members: Any) -> Blob:
    manifest = {
        "schemaVersion": 2,
        "mediaType": images.OCI_MANIFEST,
        "artifactType": BUNDLE,
        "config": EMPTY.described(),
        "layers": [blob.described() for blob in blobs],
        "subject": {"mediaType": images.OCI_MANIFEST, "digest": str(subject), "size": 1},
        **members,
    }
    return Blob(data=text_of(manifest), media_type=images.OCI_MANIFEST)


def listing(*referrers: Blob, artifact_type: str = BUNDLE) -> Blob:
    value = {
        "schemaVersion": 2,
        "mediaType": images.OCI_INDEX,
        "manifests": [each.described(artifactType=artifact_type) for each in referrers],
    }
    return Blob(data=text_of(value), media_type=images.OCI_INDEX)


def put_referrer(registry: DockerRegistry, name: str, made: Blob, *blobs: Blob) -> None:
    for blob in (EMPTY, *blobs):
        registry.put_blob(name, blob.data, str(blob.digest))
    registry.put_manifest(name, str(made.digest), made.data, made.media_type)


@needs_registry
def test_bundles_are_found_by_the_tag_scheme_where_the_registry_lists_no_referrers(
    registry: DockerRegistry, name: str, fetcher: Fetcher
) -> None:
    built = image("signed")
    push(registry, name, "v1", built)
    bundle = Blob(data=b'{"mediaType": "a bundle"}', media_type=BUNDLE)
    provenance = "https://slsa.dev/provenance/v1"
    made = referrer(built.digest, (bundle,), annotations={"dev.sigstore.bundle.predicateType": provenance})
    about_another = referrer(Digest.of_bytes(b"another"), (bundle,))
    put_referrer(registry, name, made, bundle)
    put_referrer(registry, name, about_another, bundle)
    listed = listing(made, about_another)
    registry.put_manifest(name, f"sha256-{built.digest.hex}", listed.data, listed.media_type)
    found = fetch_reference(f"{registry.host}/{name}:v1", fetcher, attestations=True)
    assert found.attestations == (ArtifactAttestation(kind=provenance, bundle=bundle.data, file=str(built.digest)),)


@needs_registry
def test_signatures_are_found_where_cosign_puts_them(registry: DockerRegistry, name: str, fetcher: Fetcher) -> None:
    built = image("signed by cosign")
    push(registry, name, "v1", built)
    kinds = {
        ".sig": "application/vnd.dev.cosign.simplesigning.v1+json",
        ".att": "application/vnd.dsse.envelope.v1+json",
    }
    for suffix, kind in kinds.items():
        blob = Blob(data=suffix.encode(), media_type=kind)
        described = blob.described(annotations={"dev.cosignproject.cosign/signature": "MEUC"})
        made = referrer(built.digest, (), layers=[described])
        put_referrer(registry, name, made, blob)
        registry.put_manifest(name, f"sha256-{built.digest.hex}{suffix}", made.data, made.media_type)
    found = fetch_reference(f"{registry.host}/{name}:v1", fetcher, attestations=True)
    assert [(each.kind, json.loads(each.bundle)) for each in found.attestations] == [
        (
            kind,
            {
                "annotations": {"dev.cosignproject.cosign/signature": "MEUC"},
                "mediaType": kind,
                "payload": base64.b64encode(suffix.encode()).decode(),
            },
        )
        for suffix, kind in kinds.items()
    ]


@needs_registry
def test_attack_a_bundle_changed_on_disk_is_a_mismatch_and_no_attestation(
    registry: DockerRegistry, name: str, fetcher: Fetcher
) -> None:
    built = image("signed")
    push(registry, name, "v1", built)
    bundle = Blob(data=f"a bundle of {name}".encode(), media_type=BUNDLE)
    made = referrer(built.digest, (bundle,))
    put_referrer(registry, name, made, bundle)
    listed = listing(made)
    registry.put_manifest(name, f"sha256-{built.digest.hex}", listed.data, listed.media_type)
    registry.blob_file(str(bundle.digest)).write_bytes(bundle.data[::-1])
    found = fetch_reference(f"{registry.host}/{name}:v1", fetcher, attestations=True)
    assert (found.attestations, image_of(found).mismatches) == ((), (str(bundle.digest),))


def test_referrers_are_read_page_by_page_from_a_registry_that_lists_them(fetcher: Fetcher) -> None:
    built = image("signed")
    bundles = [Blob(data=f"bundle {number}".encode(), media_type=BUNDLE) for number in range(3)]
    made = [referrer(built.digest, (each,)) for each in bundles]
    here = f"/v2/a/b/referrers/{built.digest}"
    pages = {here: (listing(made[0]), f'<{here}?last=1>; rel="next"'), f"{here}?last=1": (listing(made[1]), "")}
    fallback = {f"manifests/sha256-{built.digest.hex}": listing(made[2])}
    with scripted() as server:
        blobs = {f"manifests/{each.digest}": each for each in made} | {f"blobs/{each.digest}": each for each in bundles}
        serve(server, contents(built) | blobs | fallback)
        give = server.answer

        def answer(asked: Asked) -> Reply:
            if asked.path in pages:
                page, link = pages[asked.path]
                return Reply(body=page.data, headers={"content-type": page.media_type, "link": link})
            return give(asked)

        server.answer = answer
        found = fetch_reference(f"{server.host}/a/b@{built.digest}", fetcher, attestations=True)
        subject = str(built.digest)
        assert found.attestations == tuple(
            ArtifactAttestation(kind=BUNDLE, bundle=each.data, file=subject) for each in bundles[:2]
        )
        for elsewhere in ("http://169.254.169.254/latest", "http://[no-address"):
            pages[here] = (listing(made[0]), f'<{elsewhere}>; rel="next"')
            error = refused(lambda: fetch_reference(f"{server.host}/a/b@{built.digest}", fetcher, attestations=True))
            assert (error.code, error.data) == ("FETCH_FAILED", {"reason": "protocol"})
        pages[here] = (listing(made[0]), f'<{here}?last=0>; rel="next"')
        pages[f"{here}?last=0"] = pages[here]
        error = refused(lambda: fetch_reference(f"{server.host}/a/b@{built.digest}", fetcher, attestations=True))
        assert error.code == "FETCH_LIMIT"


# A copy for the container engine


@needs_registry
@needs_skopeo
@pytest.mark.parametrize("docker", [False, True])
def test_a_saved_layout_is_accepted_by_skopeo_byte_for_byte(
    registry: DockerRegistry, name: str, fetcher: Fetcher, docker: bool, tmp_path: Path
) -> None:
    built = {each: image("saved", platform=each, docker=docker) for each in ("linux/amd64", "linux/arm64")}
    whole = index(built, docker=docker)
    push_index(registry, name, "v1", built, whole)
    reference = f"{registry.host}/{name}:v1"
    save_layout(opened(reference, fetcher), whole.digest, tmp_path / "layout")
    command = ["skopeo", "copy", "-q", "--all", "--dest-tls-verify=false"]
    target = f"{registry.host}/{name}-copy:v1"
    subprocess.run([*command, f"oci:{tmp_path / 'layout'}", f"docker://{target}"], check=True, timeout=240)
    assert resolve_text(target, fetcher) == whole.digest
    files = [file for file in (tmp_path / "layout").rglob("*") if file.is_file()]
    assert len(files) == 2 + 1 + 2 * 2 + 1  # the layout's own, the index, manifests and configs, the one layer
    assert [file.name for file in tmp_path.iterdir()] == ["layout"]


@needs_registry
@needs_skopeo
def test_a_layout_of_one_platform_has_only_that_platform(
    registry: DockerRegistry, name: str, fetcher: Fetcher, tmp_path: Path
) -> None:
    built = {each: image("saved", platform=each) for each in ("linux/amd64", "linux/arm64")}
    whole = index(built)
    push_index(registry, name, "v1", built, whole)
    registry_of_it = opened(f"{registry.host}/{name}:v1", fetcher)
    save_layout(registry_of_it, whole.digest, tmp_path / "layout", platforms=("linux/arm64",))
    only = built["linux/arm64"]
    held = {file.name for file in (tmp_path / "layout" / "blobs" / "sha256").iterdir()}
    assert held == {blob.digest.hex for blob in (whole, only.manifest, *only.blobs)}
    command = ["skopeo", "copy", "-q", "--override-arch", "arm64", f"oci:{tmp_path / 'layout'}"]
    subprocess.run([*command, f"dir:{tmp_path / 'copy'}"], check=True, timeout=240)
    assert Digest.of_bytes((tmp_path / "copy" / "manifest.json").read_bytes()) == only.digest


@needs_registry
def test_attack_a_layout_with_a_changed_blob_is_never_left_behind(
    registry: DockerRegistry, name: str, fetcher: Fetcher, tmp_path: Path
) -> None:
    built = image(f"a layout of {name}")
    push(registry, name, "v1", built)
    victim = built.layers[0]
    registry.blob_file(str(victim.digest)).write_bytes(b"X" + victim.data[1:])
    asking = opened(f"{registry.host}/{name}:v1", fetcher)
    error = refused(lambda: save_layout(asking, built.digest, tmp_path / "layout"))
    assert (error.code, error.data) == ("ARTIFACT_MISMATCH", {"mismatches": [str(victim.digest)], "problems": []})
    registry.blob_file(str(built.digest)).write_bytes(image("smuggled in").manifest.data)
    error = refused(lambda: save_layout(asking, built.digest, tmp_path / "layout"))
    assert (error.code, error.data) == ("ARTIFACT_MISMATCH", {"mismatches": [str(built.digest)], "problems": []})
    assert refused(lambda: save_layout(asking, Digest.of_bytes(b"none"), tmp_path / "layout")).code == "FETCH_FAILED"
    assert list(tmp_path.iterdir()) == []


def test_a_layout_never_replaces_an_existing_folder(fetcher: Fetcher, tmp_path: Path) -> None:
    (tmp_path / "layout").symlink_to(tmp_path / "nowhere")
    asking = opened("127.0.0.1:1/a/b:v1", fetcher)
    assert refused(lambda: save_layout(asking, Digest.of_bytes(b""), tmp_path / "layout")).code == "FILE_EXISTS"


# The scripted registry


def contents(built: BuiltImage) -> dict[str, Blob]:
    manifest = {f"manifests/{built.digest}": built.manifest}
    return manifest | {f"blobs/{blob.digest}": blob for blob in built.blobs}


def serve(server: Scripted, blobs: dict[str, Blob], headers: dict[str, str] | None = None) -> None:
    """Answer for the image ``a/b``."""

    def answer(asked: Asked) -> Reply:
        blob = blobs.get(asked.path.removeprefix("/v2/a/b/"))
        if blob is None:
            return Reply(status=404)
        return Reply(body=blob.data, headers={"content-type": blob.media_type, **(headers or {})})

    server.answer = answer


class closing:  # noqa: N801 - reads like the one of contextlib
    """A fetcher under other rules, for the time of a block."""

    def __init__(self, rules: FetchRules) -> None:
        self.fetcher = Fetcher(rules)

    def __enter__(self) -> Fetcher:
        return self.fetcher

    def __exit__(self, *_: object) -> None:
        self.fetcher.close()
