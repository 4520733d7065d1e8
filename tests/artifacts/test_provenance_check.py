"""Attestations: forged ones against our own trust root, tampered in every way, and real ones against the public one."""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import socket
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from pinwarden.artifacts.artifact import ArtifactAttestation, ArtifactFile, FetchedArtifact, FetchedImage, PackageRef
from pinwarden.artifacts.provenance import (
    ExpectedSubject,
    Identity,
    ProvenanceOutcome,
    RegistryKey,
    choose_strongest_identity,
    identity_from_json,
    identity_to_json,
    parse_registry_keys,
)
from pinwarden.artifacts.provenance_check import ProvenanceVerifier
from pinwarden.artifacts.pypi_index import parse_provenance
from pinwarden.core import record
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from tests.support.forged_sigstore import (
    GITHUB,
    IN_TOTO,
    Build,
    Forge,
    b64,
    compact,
    cosign,
    new_key,
    public_pem,
    signed,
    spki,
)

NOW = "2026-11-16T00:00:00Z"
ASSETS = Path(__file__).parent.parent / "assets" / "sigstore"
SLSA = "https://slsa.dev/provenance/v1"
NPM_PUBLISH = "https://github.com/npm/attestation/tree/main/specs/publish/v0.1"
PYPI_PUBLISH = "https://docs.example/attestations/publish/v1"
BYTES = b"the archive"
BUILD = Build()
IDENTITY = Identity(
    kind="slsa-provenance/v1",
    issuer=GITHUB,
    repository="https://github.com/acme/slack-mcp",
    repository_id="1001",
    owner_id="77",
    workflow=".github/workflows/release.yml",
    ref="refs/tags/v1.2.0",
    builder="https://github.com/acme/slack-mcp/.github/workflows/release.yml",
    runner="github-hosted",
    commit="c" * 40,
)


def digests(data: bytes = BYTES) -> tuple[Digest, ...]:
    return Digest.of_bytes(data), Digest(hashlib.sha512(data).digest(), "sha512")


NPM = ExpectedSubject(ecosystem="npm", name="@acme/slack-mcp", version="1.2.0", digests=digests())
PYPI = ExpectedSubject(ecosystem="pypi", name="slack_mcp-1.2.0-py3-none-any.whl", version="1.2.0", digests=digests())
OCI = ExpectedSubject(ecosystem="oci", name="ghcr.example/acme/slack:v1", digests=(Digest.of_bytes(BYTES),))


def slsa_predicate(**workflow: str) -> dict[str, Any]:
    stated = {"repository": BUILD.repository, "path": BUILD.workflow, "ref": BUILD.ref, **workflow}
    source = {"uri": f"git+{BUILD.repository}@{BUILD.ref}", "digest": {"gitCommit": BUILD.commit}}
    return {
        "buildDefinition": {"externalParameters": {"workflow": stated}, "resolvedDependencies": [source]},
        "runDetails": {"builder": {"id": "https://github.com/actions/runner/github-hosted"}},
    }


def statement(
    name: str = "pkg:npm/%40acme/slack-mcp@1.2.0",
    *,
    algorithm: str = "sha512",
    data: bytes = BYTES,
    kind: str = SLSA,
    predicate: Any = None,
) -> bytes:
    digest = hashlib.new(algorithm, data).hexdigest()
    return compact(
        {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": name, "digest": {algorithm: digest}}],
            "predicateType": kind,
            "predicate": slsa_predicate() if predicate is None and kind == SLSA else predicate,
        }
    )


@pytest.fixture(scope="module")
def forge() -> Forge:
    return Forge()


@pytest.fixture(scope="module")
def root(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("root") / "trusted_root.json"
    path.write_text(json.dumps(forge.trusted_root()))
    return path


@pytest.fixture
def verifier(root: Path) -> ProvenanceVerifier:
    return ProvenanceVerifier(now=NOW, trust_root=root)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError("a verification went out to the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def attestation(document: Any) -> ArtifactAttestation:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    return ArtifactAttestation(kind="any", bundle=data)


def check(verifier: ProvenanceVerifier, document: Any, about: ExpectedSubject = NPM) -> ProvenanceOutcome:
    return verifier.verify(attestation(document), about)


def failed(outcome: ProvenanceOutcome) -> str:
    assert (outcome.state, outcome.identity, outcome.anchor) == ("failed", None, "")
    return outcome.reason


# Good ones


@pytest.mark.parametrize("kind", ["dsse", "intoto"])
def test_valid_npm_provenance_gives_the_identity_in_its_certificate(
    forge: Forge, root: Path, verifier: ProvenanceVerifier, kind: str
) -> None:
    outcome = check(verifier, forge.statement_bundle(statement(), BUILD, kind=kind))

    assert outcome == ProvenanceOutcome(
        state="verified",
        signer="certificate",
        method="sigstore-dsse",
        anchor=f"trust root {Digest.of_bytes(root.read_bytes())} (file)",
        identity=IDENTITY,
    )


def test_a_valid_pypi_attestation_is_verified_by_file_name_and_sha256(
    forge: Forge, verifier: ProvenanceVerifier
) -> None:
    stated = statement(PYPI.name, algorithm="sha256", kind=PYPI_PUBLISH)

    outcome = check(verifier, forge.statement_bundle(stated, BUILD), PYPI)

    assert outcome.identity == record.replace(IDENTITY, kind="pypi-publish")


def test_a_file_name_in_another_spelling_of_the_same_name_is_the_same_file(
    forge: Forge, verifier: ProvenanceVerifier
) -> None:
    stated = statement("Slack_MCP-1.2-py3-none-any.whl", algorithm="sha256", kind=PYPI_PUBLISH)

    assert check(verifier, forge.statement_bundle(stated, BUILD), PYPI).state == "verified"


def test_valid_image_provenance_is_verified_by_the_manifest_digest(forge: Forge, verifier: ProvenanceVerifier) -> None:
    stated = statement("ghcr.example/acme/slack", algorithm="sha256")

    assert check(verifier, forge.statement_bundle(stated, BUILD), OCI).identity == IDENTITY


def test_a_signature_over_the_bytes_alone_is_verified_by_their_digest(
    forge: Forge, verifier: ProvenanceVerifier
) -> None:
    outcome = check(verifier, forge.message_bundle(Digest.of_bytes(BYTES).raw, BUILD), OCI)

    assert (outcome.state, outcome.method) == ("verified", "sigstore-signature")
    assert outcome.identity == record.replace(IDENTITY, kind="signature")


def test_a_person_who_signed_is_the_only_identity(forge: Forge, verifier: ProvenanceVerifier) -> None:
    who = Build(account="bob@acme.example", issuer="https://accounts.example")

    outcome = check(verifier, forge.statement_bundle(statement(), who))

    assert outcome.identity == Identity(
        kind="slsa-provenance/v1", issuer="https://accounts.example", signer="bob@acme.example"
    )


def test_a_reusable_workflow_is_the_builder_and_the_caller_the_workflow(
    forge: Forge, verifier: ProvenanceVerifier
) -> None:
    generator = "https://github.com/slsa/generator/.github/workflows/build.yml"
    who = replace(BUILD, builder=f"{generator}@refs/tags/v2.0.0")

    assert check(verifier, forge.statement_bundle(statement(), who)).identity == record.replace(
        IDENTITY, builder=generator
    )


def test_an_at_sign_in_a_tag_is_not_part_of_the_workflow(forge: Forge, verifier: ProvenanceVerifier) -> None:
    who = replace(BUILD, ref="refs/tags/@acme/slack@1.2.0")
    stated = statement(predicate=slsa_predicate(ref=who.ref))

    assert check(verifier, forge.statement_bundle(stated, who)).identity == record.replace(IDENTITY, ref=who.ref)


def test_a_certificate_of_the_old_form_names_repository_workflow_ref_and_commit(
    forge: Forge, verifier: ProvenanceVerifier
) -> None:
    outcome = check(verifier, forge.statement_bundle(statement(), replace(BUILD, old=True)))

    assert outcome.identity == record.replace(IDENTITY, repository_id="", owner_id="", runner="")


def test_attack_an_old_certificate_of_another_issuer_cannot_name_a_repository_on_github(
    forge: Forge, verifier: ProvenanceVerifier
) -> None:
    who = replace(BUILD, old=True, issuer="https://issuer.evil.example")

    outcome = check(verifier, forge.statement_bundle(statement(), who))

    assert outcome.identity is not None
    assert (outcome.identity.issuer, outcome.identity.repository) == ("https://issuer.evil.example", "")


def test_an_identity_survives_a_round_trip_through_the_lock(forge: Forge, verifier: ProvenanceVerifier) -> None:
    identity = check(verifier, forge.statement_bundle(statement(), BUILD)).identity
    assert identity is not None

    record = identity_to_json(identity)

    assert record["refClass"] == "tag"
    assert identity_from_json(json.loads(json.dumps(record))) == identity


# Attacks on bundles

Edit = Callable[[dict[str, Any]], None]


def _entry(bundle: dict[str, Any]) -> dict[str, Any]:
    (entry,) = bundle["verificationMaterial"]["tlogEntries"]
    assert isinstance(entry, dict)
    return entry


def _no_promise(bundle: dict[str, Any]) -> None:
    del _entry(bundle)["inclusionPromise"]


def _no_proof(bundle: dict[str, Any]) -> None:
    del _entry(bundle)["inclusionProof"]


def _later(bundle: dict[str, Any]) -> None:
    _entry(bundle)["integratedTime"] = str(int(_entry(bundle)["integratedTime"]) + 3600)


def _slightly_later(bundle: dict[str, Any]) -> None:
    _entry(bundle)["integratedTime"] = str(int(_entry(bundle)["integratedTime"]) + 60)


def _other_checkpoint(bundle: dict[str, Any]) -> None:
    checkpoint = _entry(bundle)["inclusionProof"]["checkpoint"]
    checkpoint["envelope"] = checkpoint["envelope"].replace("log.example\n1\n", "log.example\n2\n", 1)


def _other_root(bundle: dict[str, Any]) -> None:
    _entry(bundle)["inclusionProof"]["rootHash"] = b64(bytes(32))


def _other_payload(bundle: dict[str, Any]) -> None:
    payload = b64decode(bundle["dsseEnvelope"]["payload"])
    bundle["dsseEnvelope"]["payload"] = b64(payload.replace(b"release.yml", b"evil.yml"))


def _other_signature(bundle: dict[str, Any]) -> None:
    bundle["dsseEnvelope"]["signatures"] = [{"sig": b64(signed(new_key(), b"x"))}]


def _two_signatures(bundle: dict[str, Any]) -> None:
    bundle["dsseEnvelope"]["signatures"] *= 2


def _other_type(bundle: dict[str, Any]) -> None:
    bundle["dsseEnvelope"]["payloadType"] = "text/plain"


def _no_certificate(bundle: dict[str, Any]) -> None:
    del bundle["verificationMaterial"]["certificate"]


def _no_entries(bundle: dict[str, Any]) -> None:
    bundle["verificationMaterial"]["tlogEntries"] = []


def _text_for_an_object(bundle: dict[str, Any]) -> None:
    bundle["verificationMaterial"] = "none"


def _not_base64(bundle: dict[str, Any]) -> None:
    _entry(bundle)["canonicalizedBody"] = "****"


EDITS: tuple[Edit, ...] = (
    _no_promise,
    _no_proof,
    _later,
    _slightly_later,
    _other_checkpoint,
    _other_root,
    _other_payload,
    _other_signature,
    _two_signatures,
    _other_type,
    _no_certificate,
    _no_entries,
    _text_for_an_object,
    _not_base64,
)


@pytest.mark.parametrize("kind", ["dsse", "intoto"])
@pytest.mark.parametrize("edit", EDITS)
def test_attack_a_bundle_edited_anywhere_is_refused(
    forge: Forge, verifier: ProvenanceVerifier, edit: Edit, kind: str
) -> None:
    bundle = forge.statement_bundle(statement(), BUILD, kind=kind)
    edit(bundle)

    assert failed(check(verifier, bundle))


@pytest.mark.parametrize("kind", ["dsse", "intoto"])
def test_attack_a_log_entry_of_another_signature_is_refused(
    forge: Forge, verifier: ProvenanceVerifier, kind: str
) -> None:
    """CVE-2022-36056: the proof is good, and proves that something else was recorded."""
    bundle = forge.statement_bundle(statement(), BUILD, kind=kind)
    for stated in (statement(data=b"other"), statement()):
        other = forge.statement_bundle(stated, BUILD, kind=kind)
        bundle["verificationMaterial"]["tlogEntries"] = other["verificationMaterial"]["tlogEntries"]
        assert failed(check(verifier, bundle))


@pytest.mark.parametrize("kind", ["dsse", "intoto"])
def test_attack_a_recorded_signature_that_does_not_fit_the_certificate_is_refused(
    forge: Forge, verifier: ProvenanceVerifier, kind: str
) -> None:
    assert failed(check(verifier, forge.statement_bundle(statement(), BUILD, kind=kind, signed_with=new_key())))
    assert failed(check(verifier, forge.cosign_signature(simple_signing(), BUILD, signed_with=new_key()), OCI))


@pytest.mark.parametrize("kind", ["dsse", "intoto"])
def test_attack_a_signed_payload_of_another_type_is_not_a_statement(
    forge: Forge, verifier: ProvenanceVerifier, kind: str
) -> None:
    bundle = forge.statement_bundle(statement(), BUILD, kind=kind, payload_type="application/vnd.other+json")

    assert failed(check(verifier, bundle)) == "the envelope has no in-toto statement"


def test_attack_a_certificate_with_two_issuers_is_refused(forge: Forge, verifier: ProvenanceVerifier) -> None:
    who = replace(BUILD, old_issuer="https://issuer.evil.example")

    assert failed(check(verifier, forge.statement_bundle(statement(), who))).startswith("the certificate has no issuer")


@pytest.mark.parametrize("kind", ["dsse", "intoto"])
def test_attack_the_certificate_of_another_identity_does_not_fit_the_signature(
    forge: Forge, verifier: ProvenanceVerifier, kind: str
) -> None:
    bundle = forge.statement_bundle(statement(), Build(repository="https://github.com/evil/fork"), kind=kind)
    good = forge.statement_bundle(statement(), BUILD, kind=kind)
    bundle["verificationMaterial"]["certificate"] = good["verificationMaterial"]["certificate"]

    assert failed(check(verifier, bundle))


def test_attack_a_certificate_that_is_not_for_signing_code_is_refused(
    forge: Forge, verifier: ProvenanceVerifier
) -> None:
    mail = replace(BUILD, for_code=False)

    assert failed(check(verifier, forge.statement_bundle(statement(), mail)))
    assert failed(check(verifier, forge.statement_bundle(statement(), mail, kind="intoto")))
    assert failed(check(verifier, forge.message_bundle(Digest.of_bytes(BYTES).raw, mail), OCI))
    assert failed(check(verifier, forge.cosign_signature(simple_signing(), mail), OCI))


@pytest.mark.parametrize("kind", ["dsse", "intoto"])
@pytest.mark.parametrize("stolen", ["authority", "certificate_log", "log"])
def test_attack_a_bundle_of_another_root_is_refused_even_if_one_key_is_the_same(
    forge: Forge, verifier: ProvenanceVerifier, stolen: str, kind: str
) -> None:
    other = replace(forge, **{stolen: new_key()})

    assert failed(check(verifier, other.statement_bundle(statement(), BUILD, kind=kind)))


def test_attack_a_forged_root_is_not_believed_by_the_public_one(forge: Forge) -> None:
    assert failed(check(ProvenanceVerifier(now=NOW), forge.statement_bundle(statement(), BUILD)))


# Attacks with good bundles


def test_attack_a_valid_bundle_for_other_bytes_is_refused(forge: Forge, verifier: ProvenanceVerifier) -> None:
    bundle = forge.statement_bundle(statement(data=b"an older archive"), BUILD)

    assert failed(check(verifier, bundle)) == "the statement is about different bytes"


@pytest.mark.parametrize(
    ("name", "about"),
    [
        ("pkg:npm/%40acme/slack-mcp-fork@1.2.0", NPM),
        ("pkg:npm/%40acme/slack-mcp@1.2.1", NPM),
        ("slack_mcp-1.2.0-py3-none-any.whl", NPM),
        ("other_mcp-1.2.0-py3-none-any.whl", PYPI),
        ("slack_mcp-1.2.0-cp311-cp311-linux_x86_64.whl", PYPI),
        ("slack_mcp-1.2.0.tar.gz", PYPI),
    ],
)
def test_attack_the_same_bytes_republished_under_another_name_do_not_inherit_the_proof(
    forge: Forge, verifier: ProvenanceVerifier, name: str, about: ExpectedSubject
) -> None:
    algorithm = "sha512" if about is NPM else "sha256"
    bundle = forge.statement_bundle(statement(name, algorithm=algorithm), BUILD)

    assert failed(check(verifier, bundle, about)) == f"the statement is about {name!a}, not {about.name!a}"


def test_attack_a_statement_that_lists_the_name_and_the_digest_apart_is_about_neither(
    forge: Forge, verifier: ProvenanceVerifier
) -> None:
    document = json.loads(statement())
    wrong = hashlib.sha512(b"other").hexdigest()
    document["subject"].append({"name": "pkg:npm/else@1.0.0", "digest": document["subject"][0]["digest"]})
    document["subject"][0] = {**document["subject"][0], "digest": {"sha512": wrong}}

    assert failed(check(verifier, forge.statement_bundle(compact(document), BUILD)))


def test_attack_one_correct_digest_next_to_a_wrong_one_is_refused(forge: Forge, verifier: ProvenanceVerifier) -> None:
    document = json.loads(statement())
    document["subject"][0]["digest"]["sha256"] = hashlib.sha256(b"other").hexdigest()

    assert failed(check(verifier, forge.statement_bundle(compact(document), BUILD)))


@pytest.mark.parametrize(
    ("claims", "what"),
    [
        ({"repository": "https://github.com/modelcontextprotocol/servers"}, "repository"),
        ({"path": ".github/workflows/other.yml"}, "workflow"),
        ({"ref": "refs/heads/main"}, "ref"),
    ],
)
def test_attack_a_statement_that_claims_another_origin_than_its_certificate_is_refused(
    forge: Forge, verifier: ProvenanceVerifier, claims: dict[str, str], what: str
) -> None:
    bundle = forge.statement_bundle(statement(predicate=slsa_predicate(**claims)), BUILD)

    assert failed(check(verifier, bundle)) == f"the statement contradicts the certificate of its signer: {what}"


def test_attack_a_self_hosted_build_that_claims_to_be_hosted_is_refused(
    forge: Forge, verifier: ProvenanceVerifier
) -> None:
    bundle = forge.statement_bundle(statement(), replace(BUILD, runner="self-hosted"))

    assert failed(check(verifier, bundle)) == "the statement contradicts the certificate of its signer: runner"


def test_attack_an_older_statement_that_claims_another_repository_is_refused(
    forge: Forge, verifier: ProvenanceVerifier
) -> None:
    source = {"uri": "git+https://github.com/other/repo@refs/tags/v1.2.0", "entryPoint": BUILD.workflow}
    stated = statement(kind="https://slsa.dev/provenance/v0.2", predicate={"invocation": {"configSource": source}})

    assert failed(check(verifier, forge.statement_bundle(stated, BUILD))).endswith(": repository")


def test_attack_a_signature_over_other_bytes_is_refused(forge: Forge, verifier: ProvenanceVerifier) -> None:
    assert failed(check(verifier, forge.message_bundle(Digest.of_bytes(b"other").raw, BUILD), OCI))


@pytest.mark.parametrize(
    "payload",
    [
        b"[]",
        b"{}",
        statement().replace(b"in-toto.io/Statement/v1", b"in-toto.io/Statement/v9"),
        statement().replace(b'"predicateType"', b'"_type":"x","predicateType"'),
        compact({**json.loads(statement()), "subject": []}),
        compact({**json.loads(statement()), "subject": [{"name": "pkg:npm/%40acme/slack-mcp@1.2.0", "digest": {}}]}),
        compact({**json.loads(statement()), "subject": [{"name": "a", "digest": {"sha512": "00"}}]}),
        compact({**json.loads(statement()), "subject": [{"name": "a", "digest": {"sha512": 5}}]}),
        compact({**json.loads(statement()), "predicate": []}),
        compact({**json.loads(statement()), "predicateType": "a\nb"}),
        b"\xff",
    ],
)
def test_a_signed_payload_that_is_not_one_statement_proves_nothing(
    forge: Forge, verifier: ProvenanceVerifier, payload: bytes
) -> None:
    assert failed(check(verifier, forge.statement_bundle(payload, BUILD)))


def test_attack_texts_that_have_no_single_meaning_or_no_end_are_refused(
    forge: Forge, verifier: ProvenanceVerifier
) -> None:
    whole = json.dumps(forge.statement_bundle(statement(), BUILD)).encode()
    twice = whole.replace(b'{"mediaType"', b'{"mediaType":"x","mediaType"', 1)
    huge = whole[:-1] + b',"x":"' + b"a" * (9 * 1024 * 1024) + b'"}'
    deep = b"[" * 100_000

    for text in (whole[:-40], b"", b"null", b"[1]", twice, huge, deep, b"\xef\xbb\xbf" + whole):
        outcome = check(verifier, text)
        assert failed(outcome)
        assert (outcome.signer, outcome.method) == ("unknown", "none")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document, the document itself left out."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield (*path, key)
        yield from places(each, (*path, key))


HOSTILE: tuple[Any, ...] = (None, True, -1, 1e308, "", "AA==", "\x1b[2J\u202e", "9" * 400, [], [[]], {}, {"x": {}})


@pytest.mark.parametrize("form", ["dsse", "intoto", "message", "key", "cosign"])
def test_attack_replacing_any_value_of_a_bundle_neither_crashes_the_check_nor_changes_the_identity(
    forge: Forge, root: Path, form: str
) -> None:
    key = new_key()
    keys = (registry_key(key, "2026-06-01T00:00:00Z"),)
    verifier = ProvenanceVerifier(now=NOW, trust_root=root, registry_keys=keys)
    document, about = {
        "dsse": lambda: (forge.statement_bundle(statement(), BUILD), NPM),
        "intoto": lambda: (forge.statement_bundle(statement(), BUILD, kind="intoto"), NPM),
        "message": lambda: (forge.message_bundle(Digest.of_bytes(BYTES).raw, BUILD), OCI),
        "key": lambda: (forge.key_bundle(npm_publish(), key, "SHA256:abc"), NPM),
        "cosign": lambda: (forge.cosign_signature(simple_signing(), BUILD), OCI),
    }[form]()
    good = check(verifier, document, about)
    assert good.state == "verified"

    for path in places(document):
        for value in HOSTILE:
            edited = deepcopy(document)
            place = edited
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = value
            outcome = check(verifier, edited, about)
            assert outcome.identity in (None, good.identity), path
            assert outcome.reason.isprintable(), path


# Keys of a registry


def npm_publish(name: str = "@acme/slack-mcp") -> bytes:
    return statement(kind=NPM_PUBLISH, predicate={"name": name, "version": "1.2.0", "registry": "https://npm.example"})


def registry_key(key: ec.EllipticCurvePrivateKey, expires: str | None = None) -> RegistryKey:
    document = {"keys": [{"keyid": "SHA256:abc", "key": b64(spki(key)), "expires": expires}, {"keyid": 5}, "x"]}
    (found,) = parse_registry_keys(json.dumps(document).encode())
    return found


def test_a_publish_attestation_is_verified_with_the_registrys_key_and_without_the_package_sigstore(
    forge: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sigstore", None)
    key = new_key()
    verifier = ProvenanceVerifier(now=NOW, registry_keys=(registry_key(key),))

    outcome = check(verifier, forge.key_bundle(npm_publish(), key, "SHA256:abc"))

    assert outcome == ProvenanceOutcome(
        state="verified",
        signer="key",
        method="npm-registry-key",
        anchor="registry key SHA256:abc",
        identity=Identity(kind="npm-publish", key_id="SHA256:abc"),
    )


def test_attack_publish_attestations_by_others_or_about_others_are_refused(forge: Forge) -> None:
    key = new_key()
    verifier = ProvenanceVerifier(now=NOW, registry_keys=(registry_key(key),))

    assert failed(check(verifier, forge.key_bundle(npm_publish(), new_key(), "SHA256:abc")))
    assert failed(check(verifier, forge.key_bundle(npm_publish(), key, "SHA256:other")))
    assert failed(check(verifier, forge.key_bundle(npm_publish("left-pad"), key, "SHA256:abc")))
    assert failed(check(verifier, forge.key_bundle(statement(), key, "SHA256:abc"))) == (
        "the registry's key signed a statement that is not a publish attestation"
    )


@pytest.mark.parametrize("kind", ["intoto", "dsse"])
def test_an_expired_key_is_valid_for_signatures_logged_before_its_expiry(forge: Forge, root: Path, kind: str) -> None:
    key = new_key()
    bundle = forge.key_bundle(npm_publish(), key, "SHA256:abc", kind=kind)

    def at(expires: str, document: Any = bundle) -> ProvenanceOutcome:
        keys = (registry_key(key, expires),)
        return check(ProvenanceVerifier(now=NOW, trust_root=root, registry_keys=keys), document)

    unlogged = deepcopy(bundle)
    unlogged["verificationMaterial"]["tlogEntries"] = []
    shifted, unpromised, borrowed = deepcopy(bundle), deepcopy(bundle), deepcopy(bundle)
    _slightly_later(shifted)
    _no_promise(unpromised)
    older = forge.key_bundle(npm_publish("left-pad"), key, "SHA256:abc", kind=kind)
    borrowed["verificationMaterial"]["tlogEntries"] = older["verificationMaterial"]["tlogEntries"]
    assert at("2026-06-01T00:00:00Z").state == "verified"
    logged_at = datetime.fromtimestamp(int(_entry(bundle)["integratedTime"]), UTC)
    assert at((logged_at + timedelta(seconds=1)).isoformat()).state == "verified"
    assert failed(at(logged_at.isoformat())) == "the registry's key had expired before the attestation was signed"
    assert failed(at("2026-02-01T00:00:00Z")) == "the registry's key had expired before the attestation was signed"
    assert failed(at("2026-06-01T00:00:00Z", unlogged))
    assert failed(at("2026-06-01T00:00:00Z", shifted))
    assert failed(at("2026-06-01T00:00:00Z", unpromised))
    assert failed(at("2026-06-01T00:00:00Z", borrowed)) == "the log entry is for another signature"
    assert failed(at("some day"))


def test_without_the_registrys_keys_nothing_was_checked(forge: Forge) -> None:
    outcome = check(ProvenanceVerifier(now=NOW), forge.key_bundle(npm_publish(), new_key(), "SHA256:abc"))

    assert (outcome.state, outcome.signer) == ("unavailable", "key")
    assert outcome.reason == "the attestation is signed with a key, but the registry publishes no keys"


# Cosign's older signatures


def simple_signing(data: bytes = BYTES) -> bytes:
    image = {"docker-manifest-digest": str(Digest.of_bytes(data))}
    identity = {"docker-reference": "ghcr.example/acme/slack"}
    critical = {"identity": identity, "image": image, "type": "cosign container image signature"}
    return compact({"critical": critical, "optional": None})


def test_an_older_image_signature_with_certificate_gives_its_identity(
    forge: Forge, verifier: ProvenanceVerifier
) -> None:
    outcome = check(verifier, forge.cosign_signature(simple_signing(), BUILD), OCI)

    assert (outcome.state, outcome.method) == ("verified", "cosign-certificate")
    assert outcome.identity == record.replace(IDENTITY, kind="cosign-signature")


def test_attack_older_image_signatures_for_others_or_edited_are_refused(
    forge: Forge, verifier: ProvenanceVerifier
) -> None:
    good = forge.cosign_signature(simple_signing(), BUILD)
    other = forge.cosign_signature(simple_signing(), BUILD)
    promise, certificate = "dev.sigstore.cosign/bundle", "dev.sigstore.cosign/certificate"

    def edited(name: str, value: str | None) -> dict[str, Any]:
        annotations = {**good["annotations"], name: value}
        return {**good, "annotations": {key: text for key, text in annotations.items() if text is not None}}

    assert failed(check(verifier, forge.cosign_signature(simple_signing(b"other"), BUILD), OCI)) == (
        "the signature is for another image"
    )
    assert (
        failed(check(verifier, edited(promise, None), OCI)) == "the attestation has no log entry with the signing time"
    )
    assert failed(check(verifier, edited(promise, other["annotations"][promise]), OCI))
    assert failed(check(verifier, edited(promise, good["annotations"][promise].replace('Index": 0', 'Index": 1')), OCI))
    assert failed(check(verifier, edited(certificate, other["annotations"][certificate]), OCI))
    assert failed(check(verifier, {**good, "payload": b64(simple_signing() + b" ")}, OCI))
    assert failed(check(verifier, Forge().cosign_signature(simple_signing(), BUILD), OCI))


def test_an_image_signature_by_key_is_verified_with_a_key_that_was_given() -> None:
    key, other = new_key(), new_key()
    annotations = {"dev.cosignproject.cosign/signature": b64(signed(key, simple_signing()))}
    document = cosign(simple_signing(), annotations)
    key_id = str(Digest.of_bytes(spki(key)))

    given = check(ProvenanceVerifier(now=NOW, public_keys=(public_pem(other), public_pem(key))), document, OCI)
    wrong = check(ProvenanceVerifier(now=NOW, public_keys=(public_pem(other),)), document, OCI)
    none = check(ProvenanceVerifier(now=NOW), document, OCI)

    assert given.identity == Identity(kind="cosign-signature", key_id=key_id)
    assert failed(wrong) == "the attestation is not signed with any of the configured public keys"
    assert (none.state, none.reason) == (
        "unavailable",
        "the attestation is signed with a key, but no public key is configured",
    )


def test_an_older_statement_by_key_is_verified_and_one_with_a_certificate_is_not_checked(
    verifier: ProvenanceVerifier,
) -> None:
    key = new_key()
    payload = statement("ghcr.example/acme/slack", algorithm="sha256")
    pae = b"DSSEv1 %d %b %d %b" % (len(IN_TOTO), IN_TOTO.encode(), len(payload), payload)
    envelope = {"payload": b64(payload), "payloadType": IN_TOTO, "signatures": [{"sig": b64(signed(key, pae))}]}
    document = {
        "annotations": {},
        "mediaType": "application/vnd.dsse.envelope.v1+json",
        "payload": b64(json.dumps(envelope).encode()),
    }

    by_key = check(ProvenanceVerifier(now=NOW, public_keys=(public_pem(key),)), document, OCI)
    certified = check(verifier, {**document, "annotations": {"dev.sigstore.cosign/certificate": "x"}}, OCI)

    assert by_key.identity == Identity(kind="slsa-provenance/v1", key_id=str(Digest.of_bytes(spki(key))))
    assert (certified.state, certified.signer) == ("unavailable", "unknown")


# What was found out about an artifact


def test_every_attestation_is_checked_against_the_file_that_it_came_with(
    forge: Forge, verifier: ProvenanceVerifier
) -> None:
    names = ("slack_mcp-1.2.0-py3-none-any.whl", "slack_mcp-1.2.0.tar.gz")
    files = tuple(ArtifactFile(name=name, size=1, digests=digests(name.encode())) for name in names)
    bundles = [
        json.dumps(
            forge.statement_bundle(statement(name, algorithm="sha256", data=name.encode(), kind=PYPI_PUBLISH), BUILD)
        ).encode()
        for name in names
    ]
    came = [
        ArtifactAttestation(kind=PYPI_PUBLISH, bundle=bundles[0], file=names[0]),
        ArtifactAttestation(kind=PYPI_PUBLISH, bundle=bundles[0], file=names[1]),
        ArtifactAttestation(kind=PYPI_PUBLISH, bundle=bundles[1], file=names[1]),
        ArtifactAttestation(kind=PYPI_PUBLISH, bundle=bundles[1], file="slack_mcp-1.2.0.zip"),
    ]
    package = PackageRef(ecosystem="pypi", name="slack-mcp", version="1.2.0")
    artifact = FetchedArtifact(package=package, registry="x", checked_at=NOW, files=files, attestations=tuple(came))

    outcomes = verifier.verify_all(artifact)

    assert [outcome.state for outcome in outcomes] == ["verified", "failed", "verified", "unavailable"]
    assert choose_strongest_identity(outcomes) == record.replace(IDENTITY, kind="pypi-publish")


def test_attestations_of_an_image_are_checked_against_its_root(forge: Forge, verifier: ProvenanceVerifier) -> None:
    digest = Digest.of_bytes(BYTES)
    bundle = json.dumps(forge.statement_bundle(statement("x", algorithm="sha256"), BUILD)).encode()
    image = FetchedImage(reference="ghcr.example/acme/slack:v1", root=digest, index=None, platforms={})
    came = tuple(
        ArtifactAttestation(kind=SLSA, bundle=bundle, file=str(each)) for each in (digest, Digest.of_bytes(b"other"))
    )
    package = PackageRef(ecosystem="oci", name="ghcr.example/acme/slack:v1")
    artifact = FetchedArtifact(package=package, registry="x", checked_at=NOW, image=image, attestations=came)

    assert [outcome.state for outcome in verifier.verify_all(artifact)] == ["verified", "unavailable"]


# What the machine lacks


def test_without_the_package_sigstore_a_bundle_is_unavailable_and_never_verified(
    forge: Forge, verifier: ProvenanceVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = forge.statement_bundle(statement(), BUILD)
    for name in [each for each in sys.modules if each.partition(".")[0] == "sigstore"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sigstore", None)

    outcome = check(verifier, bundle)

    assert outcome == ProvenanceOutcome(
        state="unavailable",
        signer="certificate",
        method="sigstore-dsse",
        reason="the package sigstore is not installed; install pinwarden[provenance]",
    )


def test_a_trust_root_that_cannot_be_used_is_an_error_and_not_the_public_root(forge: Forge, tmp_path: Path) -> None:
    bundle = forge.statement_bundle(statement(), BUILD)
    good = json.dumps(forge.trusted_root())
    wrong = {
        "garbage": "{",
        "twice": good.replace('{"mediaType"', '{"mediaType": "x", "mediaType"', 1),
        "other-kind": good.replace("version=0.1", "version=9"),
        "no-logs": json.dumps({**forge.trusted_root(), "tlogs": []}),
        "no-authority": json.dumps({**forge.trusted_root(), "certificateAuthorities": []}),
    }
    for name, text in wrong.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(PinwardenError) as caught:
            check(ProvenanceVerifier(now=NOW, trust_root=tmp_path / name), bundle)
        assert caught.value.code == "TRUST_ROOT_INVALID"
    with pytest.raises(PinwardenError) as caught:
        check(ProvenanceVerifier(now=NOW, trust_root=tmp_path / "absent"), bundle)
    assert caught.value.code == "FILE_UNREADABLE"


# Real ones


def real_pypi(file: str) -> ArtifactAttestation:
    document = json.loads((ASSETS / file).read_bytes())
    if "attestation_bundles" not in document:
        document = {"version": 1, "attestation_bundles": [{"publisher": {}, "attestations": [document]}]}
    (found,) = parse_provenance(json.dumps(document).encode())
    return ArtifactAttestation(kind=found.predicate_type, bundle=found.bundle)


def real_about(name: str, sha256: str) -> ExpectedSubject:
    return ExpectedSubject(ecosystem="pypi", name=name, digests=(Digest.parse(f"sha256:{sha256}"),))


TRAIL = Identity(
    kind="pypi-publish",
    issuer=GITHUB,
    repository="https://github.com/trailofbits/pypi-attestations",
    repository_id="772247423",
    owner_id="2314423",
    workflow=".github/workflows/release.yml",
    ref="refs/tags/v0.0.19",
    builder="https://github.com/trailofbits/pypi-attestations/.github/workflows/release.yml",
    runner="github-hosted",
    commit="08802efe1f8e5fec4ad842d6b8ce97656092ee72",
)
REAL = [
    (
        "pypi_attestations-0.0.19.tar.gz.provenance",
        "pypi_attestations-0.0.19.tar.gz",
        "9bb1add04b1b4e182be6b0b80931593f7a291eb49d69b4fd728a5d4cbcdc4bd3",
        TRAIL,
    ),
    (
        "pypi_attestations-0.0.19.tar.gz.slsa.attestation",
        "pypi_attestations-0.0.19.tar.gz",
        "9bb1add04b1b4e182be6b0b80931593f7a291eb49d69b4fd728a5d4cbcdc4bd3",
        record.replace(TRAIL, kind="slsa-provenance/v1"),
    ),
    (
        "gitlab_oidc_project-0.0.3.tar.gz.publish.attestation",
        "gitlab_oidc_project-0.0.3.tar.gz",
        "c1ca9b0d85df1606451098233018534497bf584362e10e4a8c21dfaea92c02a8",
        Identity(
            kind="pypi-publish",
            issuer="https://gitlab.com",
            repository="https://gitlab.com/facutuesca/gitlab-oidc-project",
            repository_id="55235664",
            owner_id="12885801",
            workflow=".gitlab-ci.yml",
            ref="refs/heads/main",
            builder="https://gitlab.com/facutuesca/gitlab-oidc-project//.gitlab-ci.yml",
            runner="gitlab-hosted",
            commit="72f7c63b75eb55ea80864962f0e645c93414da34",
        ),
    ),
    (
        "gcb_attestation_test-0.0.0.tar.gz.provenance",
        "gcb_attestation_test-0.0.0.tar.gz",
        "461317362419124b6012e855423a9078d6de8aed3e74fa78cc74d669b23dc6cf",
        Identity(
            kind="pypi-publish",
            issuer="https://accounts.google.com",
            signer="919436158236-compute@developer.gserviceaccount.com",
        ),
    ),
]


@pytest.mark.parametrize(("file", "name", "sha256", "identity"), REAL)
def test_a_real_pypi_attestation_is_verified_offline_with_the_public_root(
    file: str, name: str, sha256: str, identity: Identity
) -> None:
    verifier = ProvenanceVerifier(now=NOW)

    outcome = verifier.verify(real_pypi(file), real_about(name, sha256))
    other = verifier.verify(real_pypi(file), real_about(name, "0" * 64))

    assert (outcome.state, outcome.identity) == ("verified", identity)
    assert failed(other) == "the statement is about different bytes"


REAL_NPM = ExpectedSubject(
    ecosystem="npm",
    name="sigstore",
    version="3.1.0",
    digests=(
        Digest.parse(
            "sha512:669cd60051c816ac85139e9d5ea817fc3903459773fab45c8e8224fd1414e085"
            "f4c220afd65f12ed9ad70c770273eb9a7feea8ef0de1da5de0e86606e5328df5"
        ),
    ),
)


def test_a_real_npm_provenance_is_verified_offline_with_the_public_root() -> None:
    bundle = (ASSETS / "npm-sigstore-3.1.0.sigstore.json").read_bytes()

    outcome = check(ProvenanceVerifier(now=NOW), bundle, REAL_NPM)

    assert (outcome.state, outcome.identity) == (
        "verified",
        Identity(
            kind="slsa-provenance/v1",
            issuer=GITHUB,
            repository="https://github.com/sigstore/sigstore-js",
            repository_id="495574555",
            owner_id="71096353",
            workflow=".github/workflows/release.yml",
            ref="refs/heads/main",
            builder="https://github.com/sigstore/sigstore-js/.github/workflows/release.yml",
            runner="github-hosted",
            commit="06cd267cbdc2eeaa04294995622db9f6ad2fa7cf",
        ),
    )


@pytest.mark.parametrize("edit", [_no_promise, _later, _slightly_later, _other_root, _other_payload, _other_signature])
def test_attack_a_real_npm_provenance_edited_anywhere_is_refused(edit: Edit) -> None:
    bundle = json.loads((ASSETS / "npm-sigstore-3.1.0.sigstore.json").read_bytes())
    edit(bundle)

    assert failed(check(ProvenanceVerifier(now=NOW), bundle, REAL_NPM))


def test_a_real_staging_attestation_verifies_only_with_the_staging_root() -> None:
    file, name = "rfc8785-0.1.2-py3-none-any.whl.publish.attestation", "rfc8785-0.1.2-py3-none-any.whl"
    about = real_about(name, "c4e92e9ecc828bef2aa7dba1de8ac983511f7532a0df11c770d39099a25cf201")
    store = importlib.resources.files("sigstore._store")
    (staging,) = [each for each in store.iterdir() if "sigstage" in each.name]

    public = ProvenanceVerifier(now=NOW).verify(real_pypi(file), about)
    with importlib.resources.as_file(staging / "trusted_root.json") as path:
        own = ProvenanceVerifier(now=NOW, trust_root=path).verify(real_pypi(file), about)

    assert failed(public)
    assert own.state == "verified"
