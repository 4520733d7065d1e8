"""Names of container images, and the documents that they lead to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pinwarden import Digest, PinwardenError
from pinwarden.artifacts.oci_auth import may_receive_credential
from pinwarden.artifacts.oci_manifest import (
    ImageIndex,
    ImageManifest,
    OciDescriptor,
    Platform,
    parse_config,
    parse_document,
)
from pinwarden.artifacts.oci_reference import ImageReference, parse_reference
from pinwarden.system.net.challenges import Challenge, parse_challenges
from pinwarden.system.target import HttpAddress
from tests.support.images import DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST, Blob, image, index, text_of

SHA256 = "sha256:" + "0a" * 32
SHA512 = "sha512:" + "0b" * 64


def code(text: str) -> str:
    with pytest.raises(PinwardenError) as caught:
        parse_reference(text)
    return caught.value.code


def document_code(data: bytes, media_type: str) -> str:
    with pytest.raises(PinwardenError) as caught:
        parse_document(data, media_type)
    return caught.value.code


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("alpine", "docker.io/library/alpine:latest"),
        ("alpine:3.20", "docker.io/library/alpine:3.20"),
        ("mcp/time", "docker.io/mcp/time:latest"),
        ("docker.io/alpine", "docker.io/library/alpine:latest"),
        ("index.docker.io/mcp/time:1", "docker.io/mcp/time:1"),
        ("registry-1.docker.io/mcp/time:1", "docker.io/mcp/time:1"),
        ("localhost/x", "localhost/x:latest"),
        ("localhost:5000/x/y", "localhost:5000/x/y:latest"),
        ("127.0.0.1:5000/x", "127.0.0.1:5000/x:latest"),
        ("[::1]:5000/x", "[::1]:5000/x:latest"),
        ("GHCR.io/a/b__c/d-e.f:V1", "ghcr.io/a/b__c/d-e.f:V1"),
        (f"ghcr.io/a/b@{SHA256}", f"ghcr.io/a/b@{SHA256}"),
        (f"ghcr.io/a/b:1@{SHA512}", f"ghcr.io/a/b:1@{SHA512}"),
    ],
)
def test_a_reference_is_interpreted_as_by_docker(text: str, canonical: str) -> None:
    assert str(parse_reference(text)) == canonical
    assert str(parse_reference(canonical)) == canonical


def test_a_digest_goes_before_a_tag() -> None:
    reference = parse_reference(f"ghcr.io/a/b:1@{SHA256}")
    assert reference == ImageReference(host="ghcr.io", name="a/b", tag="1", digest=Digest.parse(SHA256))
    assert reference.tag_or_digest == SHA256


def test_only_names_of_this_machine_are_loopback() -> None:
    loopback = ("localhost/x", "localhost:1/x", "127.0.0.1/x", "127.8.9.10:80/x", "[::1]:1/x")
    elsewhere = ("localhost.example.com/x", "10.0.0.1/x", "[fe80::1]/x", "x", "localhost1:5000/x")
    assert all(parse_reference(text).is_loopback for text in loopback)
    assert not any(parse_reference(text).is_loopback for text in elsewhere)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "https://ghcr.io/a/b",
        "oci://ghcr.io/a/b",
        "ghcr.io/../../etc/passwd",
        "ghcr.io/a/../b",
        "ghcr.io//a",
        "ghcr.io/a/",
        "ghcr.io/a%2fb",
        "ghcr.io/a?b",
        "ghcr.io/a#b",
        "ghcr.io/a b",
        "ghcr.io/a\nb",
        "ghcr.io/A/b",
        "Host/a",
        "ghcr.io/a:..",
        "ghcr.io/a:b/c",
        "ghcr.io/a:",
        "ghcr.io/a:b:c",
        "ghcr.io/a:" + "t" * 129,
        "user:password@ghcr.io/a",
        "user@ghcr.io/a",
        "ghcr.io:/a",
        "ghcr.io:0/a",
        "ghcr.io:080/a",
        "ghcr.io:65536/a",
        "-ghcr.io/a",
        "ghcr..io/a",
        "ghcr.io./a",
        "127.1/a",
        "0x7f.0.0.1/a",
        "127.0.0.01/a",
        "1.2.3.4.5/a",
        "[::1/a",
        "[0:0::1]:80/a",
        "[::1%25eth0]/a",
        "gհcr.io/a",
        "a" * 300,
        "e" * 64,
        "--privileged",
        "-v",
    ],
)
def test_attack_a_hostile_reference_is_refused_before_it_is_part_of_an_address(text: str) -> None:
    assert code(text) in ("IMAGE_INVALID", "DIGEST_INVALID")


@pytest.mark.parametrize("digest", ["", "sha256:00", "md5:" + "0" * 32, "sha384:" + "0" * 96, SHA256.upper()])
def test_attack_a_reference_with_another_algorithm_or_spelling_of_digest_is_refused(digest: str) -> None:
    assert code(f"ghcr.io/a/b@{digest}") == "DIGEST_INVALID"


@given(st.text(alphabet="aA0.:/@_-[]%", max_size=40))
@example("A/0")
@example("LOCALHOST/a")
def test_every_valid_reference_has_one_canonical_text(text: str) -> None:
    try:
        reference = parse_reference(text)
    except PinwardenError as err:
        assert err.code in ("IMAGE_INVALID", "DIGEST_INVALID")
    else:
        assert parse_reference(str(reference)) == reference


@pytest.mark.parametrize("docker", [False, True])
def test_an_index_and_its_manifests_are_read_in_both_spellings(docker: bool) -> None:
    built = image("a", docker=docker)
    manifest = parse_document(built.manifest.data, built.manifest.media_type + "; charset=utf-8")
    config, layer = built.config, built.layers[0]
    assert manifest == ImageManifest(
        media_type=DOCKER_MANIFEST if docker else OCI_MANIFEST,
        config=OciDescriptor(media_type=config.media_type, digest=config.digest, size=len(config.data)),
        layers=(OciDescriptor(media_type=layer.media_type, digest=layer.digest, size=len(layer.data)),),
    )
    whole = index({"linux/arm64/v8": built}, docker=docker)
    assert parse_document(whole.data, whole.media_type) == ImageIndex(
        media_type=DOCKER_LIST if docker else OCI_INDEX,
        manifests=(
            OciDescriptor(
                media_type=built.manifest.media_type,
                digest=built.digest,
                size=len(built.manifest.data),
                platform=Platform(os="linux", architecture="arm64", variant="v8"),
            ),
        ),
    )


def changed(**members: Any) -> bytes:
    value = json.loads(image("a").manifest.data) | members
    return text_of({name: member for name, member in value.items() if member is not None})


@pytest.mark.parametrize(
    "members",
    [
        {"schemaVersion": 1},
        {"schemaVersion": True},
        {"mediaType": OCI_INDEX},
        {"mediaType": DOCKER_MANIFEST},
        {"mediaType": 1},
        {"manifests": []},
        {"fsLayers": []},
        {"config": None},
        {"layers": None},
        {"layers": {}},
        {"layers": [None]},
        {"layers": [Blob(data=b"", media_type="a/b").described()] * 513},
        {"layers": [Blob(data=b"", media_type="a/b").described(size=-1)]},
        {"layers": [Blob(data=b"", media_type="a/b").described(size=True)]},
        {"layers": [Blob(data=b"", media_type="a/b").described(size=1.0)]},
        {"layers": [Blob(data=b"", media_type="a/b").described(size=2**53)]},
        {"layers": [Blob(data=b"", media_type="no type").described()]},
        {"annotations": {"a": 1}},
        {"annotations": []},
        {"subject": "x"},
    ],
)
def test_attack_a_manifest_with_two_meanings_or_impossible_members_is_refused(members: dict[str, Any]) -> None:
    assert document_code(changed(**members), OCI_MANIFEST) == "IMAGE_INVALID"


@pytest.mark.parametrize("digest", ["md5:" + "0" * 32, "sha384:" + "0" * 96, "sha256:" + "0" * 128, "../x", None, 1])
def test_attack_a_weak_or_malformed_digest_in_a_manifest_is_refused(digest: object) -> None:
    layers = [Blob(data=b"", media_type="a/b").described(digest=digest)]
    assert document_code(changed(layers=layers), OCI_MANIFEST) == "DIGEST_INVALID"


def test_attack_media_type_confusion_index_bytes_given_out_as_a_manifest_are_refused() -> None:
    whole = index({"linux/amd64": image("a")})
    assert document_code(whole.data, OCI_MANIFEST) == "IMAGE_INVALID"
    # Without a mediaType of its own, the members still tell.
    bare = json.loads(whole.data)
    del bare["mediaType"]
    assert document_code(text_of(bare), OCI_MANIFEST) == "IMAGE_INVALID"
    assert document_code(changed(mediaType=None), OCI_INDEX) == "IMAGE_INVALID"


def test_attack_a_member_twice_in_a_manifest_is_refused() -> None:
    data = image("a").manifest.data.replace(b'"layers"', b'"layers": [], "layers"')
    assert document_code(data, OCI_MANIFEST) == "JSON_CANONICALIZATION_ERROR"


@pytest.mark.parametrize("media_type", ["", "application/json", "application/vnd.docker.distribution.manifest.v1+json"])
def test_a_document_of_another_kind_is_refused(media_type: str) -> None:
    assert document_code(image("a").manifest.data, media_type) == "IMAGE_INVALID"


def test_a_docker_manifest_states_its_media_type() -> None:
    assert document_code(changed(mediaType=None), DOCKER_MANIFEST) == "IMAGE_INVALID"
    assert parse_document(changed(mediaType=None), OCI_MANIFEST)


def test_a_config_has_platform_and_labels() -> None:
    config = parse_config(image("a", platform="linux/arm64", labels={"a": "b"}).config.data)
    assert (str(config.platform), config.labels) == ("linux/arm64", {"a": "b"})


def test_a_platform_is_matched_as_clients_do() -> None:
    arm = Platform(os="linux", architecture="arm64", variant="v8")
    assert [arm.satisfies(name) for name in ("linux/arm64", "linux/arm64/v8", "linux/arm64/v9", "linux/amd64")] == [
        True,
        True,
        False,
        False,
    ]
    assert Platform(os="linux", architecture="arm64").satisfies("linux/arm64/v8")
    assert not Platform(os="linux", architecture="arm", variant="v6").satisfies("linux/arm")
    windows = Platform(os="windows", architecture="amd64", os_version="10.0.1")
    assert (str(windows), windows.satisfies("windows/amd64")) == ("windows(10.0.1)/amd64", True)


def test_challenges_are_read_one_by_one() -> None:
    text = (
        'Negotiate, Bearer realm="https://a/t?x=1,2",service=s, scope="repository:a/b:pull,push", Basic realm="a\\"b"'
    )
    assert parse_challenges(text) == (
        Challenge(scheme="negotiate"),
        Challenge(
            scheme="bearer",
            parameters={"realm": "https://a/t?x=1,2", "service": "s", "scope": "repository:a/b:pull,push"},
        ),
        Challenge(scheme="basic", parameters={"realm": 'a"b'}),
    )
    assert parse_challenges("") == ()


@pytest.mark.parametrize("text", ['Bearer realm="a', "=", 'Bearer realm="a",realm="b"', "Basic " * 3000])
def test_attack_a_challenge_with_two_meanings_is_refused(text: str) -> None:
    with pytest.raises(PinwardenError) as caught:
        parse_challenges(text)
    assert caught.value.code == "FETCH_FAILED"


@pytest.mark.parametrize(
    ("registry", "realm", "allowed"),
    [
        ("https://ghcr.io/v2/", "https://ghcr.io/token", True),
        ("https://registry-1.docker.io/v2/", "https://auth.docker.io/token", True),
        ("https://registry.example.com/v2/", "https://example.com/jwt/auth", True),
        ("https://registry.example.com/v2/", "http://registry.example.com/token", False),
        ("https://registry.example.com/v2/", "http://auth.example.com/token", False),
        ("https://registry.example.com/v2/", "https://example.org/token", False),
        ("https://registry.example.com/v2/", "https://registry.example.com.evil.net/token", False),
        ("https://a.example.co.uk/v2/", "https://b.example.co.uk/token", True),
        ("https://a.co.uk/v2/", "https://b.co.uk/token", False),
        ("https://127.0.0.1/v2/", "https://128.0.0.1/token", False),
        ("https://intranet/v2/", "https://other/token", False),
        ("http://127.0.0.1:5000/v2/", "http://127.0.0.1:5001/token", True),
        ("http://127.0.0.1:5000/v2/", "http://localhost:5001/token", False),
    ],
)
def test_a_credential_goes_only_to_a_realm_of_the_registry_itself(registry: str, realm: str, allowed: bool) -> None:
    assert may_receive_credential(HttpAddress.parse(registry), HttpAddress.parse(realm)) is allowed
