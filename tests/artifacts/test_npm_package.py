"""Names, versions and integrity strings of npm packages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwarden.artifacts.npm_package import Integrity, check_version, parse_integrity, parse_name
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError


@pytest.mark.parametrize(
    ("text", "scope", "bare", "in_url"),
    [
        ("tool", "", "tool", "tool"),
        ("@team/tool", "@team", "tool", "@team%2Ftool"),
        ("JSONStream", "", "JSONStream", "JSONStream"),
        ("a.b_c~d-e", "", "a.b_c~d-e", "a.b_c~d-e"),
        ("-", "", "-", "-"),
        ("x" * 214, "", "x" * 214, "x" * 214),
    ],
)
def test_a_name_is_split_into_scope_and_package(text: str, scope: str, bare: str, in_url: str) -> None:
    name = parse_name(text)
    assert (name.scope, name.bare, name.in_url, str(name)) == (scope, bare, in_url, text)


@given(st.text(max_size=40))
def test_attack_no_name_leaves_its_step_of_an_address(text: str) -> None:
    try:
        name = parse_name(text)
    except PinwardenError as err:
        assert err.code == "PACKAGE_INVALID"
        return
    assert str(name) == text
    assert not set(name.in_url) & set("/?#\\ ")
    assert name.bare not in (".", "..")


@pytest.mark.parametrize("text", ["1.0.0", "2026.8.31", "1.0.0-rc.1", "1.0.0-0a+b.c", "0.0.0"])
def test_an_exact_version_is_one(text: str) -> None:
    assert check_version(text) == text


@pytest.mark.parametrize("text", ["١.0.0", "1.0.0 ", "1.0.0-", "1.0.0+", "99999999999999999.0.0", "1.0.0-" + "a" * 300])
def test_attack_something_like_a_version_is_not_one(text: str) -> None:
    with pytest.raises(PinwardenError) as caught:
        check_version(text)
    assert caught.value.code == "PACKAGE_INVALID"


@given(st.lists(st.tuples(st.sampled_from(["sha256", "sha384", "sha512"]), st.binary()), min_size=1, max_size=5))
def test_every_digest_of_an_integrity_string_is_kept(parts: list[tuple[str, bytes]]) -> None:
    digests = [Digest.of_bytes(data, algorithm) for algorithm, data in parts]
    text = "  ".join(f"{each.sri}?x" for each in digests)
    assert parse_integrity(text) == Integrity(text=text, digests=tuple(dict.fromkeys(digests)))


@pytest.mark.parametrize(
    "text", ["", "md5-AAAA", "sha512", "sha512-", "sha512-AAAA", "sha1-AAAA", "sha512-AAAA sha1-x"]
)
def test_an_integrity_string_without_a_whole_digest_is_refused(text: str) -> None:
    with pytest.raises(PinwardenError) as caught:
        parse_integrity(text)
    assert caught.value.code == "DIGEST_INVALID"
