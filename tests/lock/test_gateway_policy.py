"""The gateway policy: which rule applies, and which policies are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.lock.gateway_policy import (
    DEFAULT_GATEWAY_POLICY,
    KEYS,
    ItemPolicy,
    ServerRequestPolicy,
    tighten,
)
from pinwarden.lock.policy import parse_policy, policy_from_table

GUIDE = Path(__file__).parents[2] / "docs/guides/gateway.md"


def test_the_default_policy_is_the_strictest() -> None:
    assert DEFAULT_GATEWAY_POLICY.get_item_policy("s", "tool", "c") == ItemPolicy(
        enforcement="block", unknown="block", block_at="review", allowlist=()
    )
    assert DEFAULT_GATEWAY_POLICY.get_server_request_policy("s", "c") == ServerRequestPolicy(url_hosts=())


def test_the_policies_in_the_guide_are_valid() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    policies = [parse_policy(block.encode()).gateway for block in blocks]
    assert all(policies)
    assert policies[0] is not None
    assert policies[0].get_item_policy("notes", "delete_note", "x").enforcement == "warn"
    assert policies[0].get_item_policy("other", "delete_note", "x").enforcement == "block"
    assert [allowed.tool for allowed in policies[0].get_item_policy("any", "search_notes", "x").allowlist] == [
        "search_notes"
    ]


def test_every_policy_key_is_documented() -> None:
    tables: list[tuple[dict[str, Any], str]] = [
        ({"x": 1}, "policy.gateway.x"),
        ({"results": {"x": 1}}, "policy.gateway.results.x"),
        ({"rules": [{"x": 1}]}, "policy.gateway.rules[0].x"),
        ({"allow": [{"x": 1}]}, "policy.gateway.allow[0].x"),
    ]
    page = (GUIDE.parents[1] / "reference/gateway-policy.md").read_text(encoding="utf-8")
    for table, key in tables:
        with pytest.raises(PinwardenError) as caught:
            policy_from_table({"gateway": table})
        assert caught.value.data["key"] == key
        for name in caught.value.message.partition("known: ")[2].split(", "):
            assert f"`{name}`" in page or f".{name}]" in page, f"{key}: {name}"


def test_a_second_policy_can_only_make_each_key_stricter() -> None:
    """Attack: a policy in the current folder that loosens the user's."""
    strict: dict[str, Any] = {
        "enforcement": "block",
        "unknown": "block",
        "block-at": "info",
        "max-rounds": 1,
        "four-eyes": "always",
        "sampling": "deny",
        "elicitation": "deny",
        "roots": "deny",
        "url-hosts": ["a.example"],
        "relist-seconds": 5,
        "relist-calls": 7,
        "results": {"max-bytes": 10, "hidden-characters": "strip"},
    }
    loose: dict[str, Any] = {
        "enforcement": "audit",
        "unknown": "warn",
        "block-at": "critical",
        "max-rounds": 9,
        "four-eyes": "never",
        "sampling": "allow",
        "elicitation": "allow",
        "roots": "allow",
        "url-hosts": ["a.example", "b.example"],
        "relist-seconds": 500,
        "relist-calls": 0,
        "results": {"max-bytes": 0, "hidden-characters": "flag"},
    }
    own, other = (policy_from_table({"gateway": table}).gateway for table in (strict, loose))
    assert own is not None
    assert other is not None
    assert own.settings.keys() == {key.name for key in KEYS if key.choose_stricter is not None}
    assert tighten(own, other).settings == tighten(other, own).settings == own.settings


def test_for_each_key_the_first_matching_rule_wins() -> None:
    rules: list[dict[str, Any]] = [
        {"item": "a*", "unknown": "warn"},
        {"server": "s", "enforcement": "audit", "unknown": "block"},
        {"client": "c", "enforcement": "warn", "sampling": "deny"},
    ]
    gateway = policy_from_table({"gateway": {"unknown": "allow_unverified", "rules": rules}}).gateway
    assert gateway is not None
    answers = {
        (server, item, client): (policy.enforcement, policy.unknown)
        for server in ("s", "t")
        for item in ("abc", "xyz")
        for client in ("c", "d")
        for policy in [gateway.get_item_policy(server, item, client)]
    }
    assert answers == {
        ("s", "abc", "c"): ("audit", "warn"),
        ("s", "abc", "d"): ("audit", "warn"),
        ("s", "xyz", "c"): ("audit", "block"),
        ("s", "xyz", "d"): ("audit", "block"),
        ("t", "abc", "c"): ("warn", "warn"),
        ("t", "abc", "d"): ("block", "warn"),
        ("t", "xyz", "c"): ("warn", "allow_degraded"),
        ("t", "xyz", "d"): ("block", "allow_degraded"),
    }
    assert (
        gateway.get_server_request_policy("t", "c").sampling,
        gateway.get_server_request_policy("t", "d").sampling,
    ) == (
        False,
        True,
    )


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({}, "policy.gateway"),
        ({"enforcment": "block"}, "policy.gateway.enforcment"),
        ({"enforcement": "off"}, "policy.gateway.enforcement"),
        ({"unknown": ["block"]}, "policy.gateway.unknown"),
        ({"block-at": "high"}, "policy.gateway.block-at"),
        ({"relist-seconds": 0}, "policy.gateway.relist-seconds"),
        ({"relist-calls": -1}, "policy.gateway.relist-calls"),
        ({"url-hosts": []}, "policy.gateway.url-hosts"),
        ({"results": {"hidden-characters": "eat"}}, "policy.gateway.results.hidden-characters"),
        ({"rules": [{"item": "x"}]}, "policy.gateway.rules[0]"),
        ({"rules": [{"item": "x", "sampling": "deny"}]}, "policy.gateway.rules[0].sampling"),
        ({"rules": [{"item": "*", "url-hosts": ["a.example"]}]}, "policy.gateway.rules[0].url-hosts"),
        ({"rules": {}}, "policy.gateway.rules"),
        ({"allow": [{"tool": "t", "digest": "123"}]}, "policy.gateway.allow[0].digest"),
        ({"allow": [{"tool": "t"}]}, "policy.gateway.allow[0].digest"),
        ({"allow": [{"tool": "t", "digest": "a" * 64, "profile": "x"}]}, "policy.gateway.allow[0].profile"),
    ],
)
def test_an_invalid_policy_is_refused_with_the_key(table: dict[str, Any], key: str) -> None:
    with pytest.raises(PinwardenError) as caught:
        policy_from_table({"gateway": table})
    assert caught.value.code == "POLICY_INVALID"
    assert caught.value.data["key"] == key
