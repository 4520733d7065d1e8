from __future__ import annotations

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import field_names
from pinwarden.gateway.audit.event import KINDS, AuditEvent, encode_event, parse_event

FULL = AuditEvent(
    kind="blocked",
    server="files",
    client="editor",
    session="s1",
    call="c1",
    method="tools/call",
    item_kind="tool",
    item="read_file",
    expected=("sha256:" + "a" * 64, "sha256:" + "b" * 64),
    observed="sha256:" + "c" * 64,
    level="high",
    code="DIGEST_MISMATCH",
    reason="its description changed",
    policy="sha256:" + "d" * 64,
    by="someone",
    arguments=b'{"path":"/x"}',
)


def test_an_encoded_event_is_parsed_back_unchanged() -> None:
    assert parse_event(encode_event(FULL)) == FULL
    assert all(getattr(FULL, name) for name in field_names(AuditEvent))  # so that no member is forgotten above


def test_the_encoded_event_is_canonical_and_omits_empty_members() -> None:
    assert (
        encode_event(AuditEvent(kind="called", server="files", item="ä"))
        == '{"item":"ä","kind":"called","server":"files"}'.encode()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_event_can_be_encoded(kind: str) -> None:
    assert parse_event(encode_event(AuditEvent(kind=kind))) == AuditEvent(kind=kind)


def test_a_name_of_a_megabyte_is_truncated_and_states_its_length() -> None:
    written = encode_event(AuditEvent(kind="blocked", item="x" * 1_000_000))
    assert len(written) < 2000
    assert parse_event(written).item.endswith("… (1000000 characters)")


def test_a_name_that_utf_8_cannot_encode_is_escaped() -> None:
    assert parse_event(encode_event(AuditEvent(kind="blocked", item="a\ud800b"))).item == "a\\ud800b"


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b'{"kind":"unheard"}',
        b'{"kind":"blocked","more":1}',
        b'{"kind":"blocked","item":7}',
        b'{"kind":"blocked","item":""}',
        b'{"kind":"blocked","expected":"x"}',
        b'{"kind":"blocked","arguments":{}}',
    ],
)
def test_a_malformed_event_is_an_error_and_no_member_is_ignored(text: bytes) -> None:
    with pytest.raises(PinwardenError) as caught:
        parse_event(text)
    assert caught.value.code == "AUDIT_INVALID"
