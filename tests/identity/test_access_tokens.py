"""Access tokens of clients: each attack has a token that is valid but for one thing."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.identity.access_tokens import AccessToken, AccessTokenRules, verify_access_token
from pinwarden.identity.settings import TokenLimits
from pinwarden.identity.signed_token import VerificationKey, parse_keys
from tests.support.oidc_provider import SigningKey, encode_part

NOW = 1_800_000_000
ISSUER = "https://login.example.com"
GATEWAY = "https://mcp.example.com/mcp"
KEY = SigningKey("k1")
OTHER_KEY = SigningKey("k2")
RULES = AccessTokenRules(issuer=ISSUER, audiences=frozenset({GATEWAY}))
CLAIMS = {
    "iss": ISSUER,
    "sub": "alice",
    "aud": GATEWAY,
    "client_id": "desk",
    "scope": "tools:read tools:call",
    "groups": ["platform"],
    "iat": NOW,
    "exp": NOW + 60,
}


class Keys:
    def __init__(self, *jwks: Mapping[str, Any]) -> None:
        self.keys = parse_keys({"keys": list(jwks)})

    def find_key(self, key_id: str | None, algorithm: str) -> VerificationKey | None:
        found = [key for key in self.keys if key.suits(algorithm) and key_id in (None, key.key_id)]
        return found[0] if len(found) == 1 else None


KEYS = Keys(KEY.jwk())


def sign(header: Mapping[str, Any] | None = None, **changes: Any) -> str:
    claims = {name: value for name, value in {**CLAIMS, **changes}.items() if value is not None}
    return KEY.sign(claims, header)


def refusal(token: str, rules: AccessTokenRules = RULES, *, now: float = NOW, keys: Keys = KEYS) -> str:
    with pytest.raises(PinwardenError) as caught:
        verify_access_token(token, keys, rules, now)
    assert caught.value.code == "ACCESS_TOKEN_INVALID"
    assert not token or token not in caught.value.message
    reason = caught.value.data["reason"]
    assert isinstance(reason, str)
    return reason


def forge(header: Mapping[str, Any], signature: bytes = b"", claims: Mapping[str, Any] = CLAIMS) -> str:
    return f"{encode_part(header)}.{encode_part(claims)}.{encode_part(signature)}"


def test_a_token_for_this_gateway_is_accepted_with_all_that_it_says() -> None:
    assert verify_access_token(sign(), KEYS, RULES, NOW) == AccessToken(
        issuer=ISSUER,
        subject="alice",
        client_id="desk",
        audiences=frozenset({GATEWAY}),
        scopes=frozenset({"tools:read", "tools:call"}),
        groups=("platform",),
        expires_at=NOW + 60,
    )


def test_a_list_of_audiences_may_name_this_gateway_among_others() -> None:
    verified = verify_access_token(sign(aud=["https://other.example", GATEWAY]), KEYS, RULES, NOW)
    assert verified.audiences == {"https://other.example", GATEWAY}


def test_a_token_signed_with_an_elliptic_curve_key_is_accepted() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    jwk = {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())), "kid": "ec"}
    token = jwt.encode(CLAIMS, key, algorithm="ES256", headers={"kid": "ec", "typ": "JWT"})
    assert verify_access_token(token, Keys(jwk), RULES, NOW).subject == "alice"


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", ""])
def test_attack_1_algorithm_none_is_refused_in_every_spelling(name: str) -> None:
    header = {"alg": name, "kid": "k1", "typ": "at+jwt"}
    assert refusal(forge(header)) == "malformed"  # without a signature
    assert refusal(forge(header, b"x")) == "algorithm"


def test_attack_1_a_good_header_with_an_empty_signature_is_refused() -> None:
    assert refusal(sign().rpartition(".")[0] + ".") == "malformed"


@pytest.mark.parametrize("secret", [KEY.public_pem, json.dumps(KEY.jwk()).encode(), b"k1", b""])
def test_attack_2_the_public_key_as_shared_secret_is_refused(secret: bytes) -> None:
    signing_input = f"{encode_part({'alg': 'HS256', 'kid': 'k1', 'typ': 'at+jwt'})}.{encode_part(CLAIMS)}"
    signature = hmac.new(secret, signing_input.encode(), hashlib.sha256).digest()
    token = f"{signing_input}.{encode_part(signature)}"
    assert refusal(token) == "algorithm"
    assert refusal(token, replace(RULES, algorithms=("HS256", "RS256"))) == "algorithm"


def test_attack_2_a_shared_secret_in_the_key_set_is_left_out() -> None:
    secret = {"kty": "oct", "k": encode_part(b"x" * 32), "kid": "hs", "alg": "HS256"}
    assert [key.key_id for key in Keys(secret, KEY.jwk()).keys] == ["k1"]
    with pytest.raises(PinwardenError) as caught:
        Keys(secret)
    assert caught.value.code == "ISSUER_INVALID"


@pytest.mark.parametrize(
    "jwk",
    [
        {**KEY.jwk(), "use": "enc"},
        {**KEY.jwk(), "key_ops": ["encrypt"]},
        KEY.jwk(private=True),
        {**KEY.jwk(), "n": "AQAB"},
        {**KEY.jwk(), "kid": "x" * 100_000},
        {**KEY.jwk(), "kid": 1},
        {**KEY.jwk(), "alg": "none"},
        {"kty": "RSA"},
        {"kty": ["RSA"]},
        "text",
        None,
        json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 1024).public_key())),
    ],
)
def test_attack_7_a_key_that_cannot_verify_signatures_is_left_out(jwk: Any) -> None:
    assert [key.key_id for key in Keys(jwk, OTHER_KEY.jwk()).keys] == ["k2"]


def test_a_key_for_one_algorithm_verifies_no_other() -> None:
    token = jwt.encode(CLAIMS, KEY.private, algorithm="PS256", headers={"kid": "k1", "typ": "at+jwt"})
    assert refusal(token) == "key"
    without = {name: value for name, value in KEY.jwk().items() if name != "alg"}
    assert verify_access_token(token, Keys(without), RULES, NOW).subject == "alice"


@pytest.mark.parametrize(
    "audience",
    [
        None,
        "https://other.example/mcp",
        "desk",
        f"{GATEWAY}x",
        f"{GATEWAY}/",
        f"{GATEWAY}/notes",
        GATEWAY.upper(),
        "https://mcp.example.com",
        [],
        [f"{GATEWAY}x"],
        {"aud": GATEWAY},
        [["https://mcp.example.com/mcp"]],
        1,
    ],
)
def test_attack_3_a_token_for_another_audience_is_refused(audience: Any) -> None:
    assert refusal(sign(aud=audience)) == "audience"


@pytest.mark.parametrize("issuer", ["https://evil.example", f"{ISSUER}/", ISSUER.upper(), "login.example.com"])
def test_attack_4_a_token_from_another_issuer_is_refused(issuer: str) -> None:
    assert refusal(sign(iss=issuer)) == "issuer"


@pytest.mark.parametrize("issuer", [None, "", [ISSUER], 5])
def test_attack_4_a_token_without_a_readable_issuer_is_refused(issuer: Any) -> None:
    assert refusal(sign(iss=issuer)) == "claims"


def test_attack_4_the_right_issuer_with_another_key_is_refused() -> None:
    assert refusal(OTHER_KEY.sign(CLAIMS)) == "key"
    assert refusal(OTHER_KEY.sign(CLAIMS, {"kid": "k1"})) == "signature"


def test_attack_5_expiry_counts_up_to_the_leeway_and_no_longer() -> None:
    token = sign()
    assert verify_access_token(token, KEYS, RULES, NOW + 119.9).subject == "alice"
    assert refusal(token, now=NOW + 120) == "expired"


@pytest.mark.parametrize("name", ["nbf", "iat"])
def test_attack_5_a_token_from_the_future_counts_only_within_the_leeway(name: str) -> None:
    assert verify_access_token(sign({}, **{name: NOW + 60}), KEYS, RULES, NOW).subject == "alice"
    assert refusal(sign({}, **{name: NOW + 61}, exp=NOW + 600)) == "not-yet-valid"


@pytest.mark.parametrize("value", [None, str(NOW + 60), True, [NOW + 60], -1, 1e300])
def test_attack_5_a_token_without_a_readable_expiry_is_refused(value: Any) -> None:
    assert refusal(sign(exp=value)) == "claims"


def test_attack_5_a_token_that_would_be_valid_for_a_year_is_refused() -> None:
    assert refusal(sign(exp=NOW + 365 * 86_400)) == "claims"
    assert refusal(sign(exp=NOW + 365 * 86_400, iat=None)) == "claims"


@pytest.mark.parametrize("key_id", ["../../etc/passwd", "k1' OR '1'='1", "x" * 500, "k1\0", "", "K1"])
def test_attack_6_a_key_id_is_only_compared(key_id: str) -> None:
    assert refusal(sign({"kid": key_id})) == "key"


def test_attack_6_a_key_id_that_is_long_or_no_text_is_refused() -> None:
    header = {"alg": "RS256", "typ": "at+jwt"}
    assert refusal(forge({**header, "kid": "x" * 100_000}, b"x")) == "malformed"
    assert refusal(forge({**header, "kid": "x" * 1000}, b"x")) == "header"
    assert refusal(forge({**header, "kid": ["k1"]}, b"x")) == "header"


def test_attack_7_keys_that_the_token_itself_brings_are_ignored() -> None:
    header = {"jwk": OTHER_KEY.jwk(), "jku": "https://evil.example/jwks", "x5u": "https://evil.example/x5", "kid": "k1"}
    assert refusal(OTHER_KEY.sign(CLAIMS, header)) == "signature"
    assert refusal(OTHER_KEY.sign(CLAIMS, {**header, "kid": "k2"})) == "key"


@pytest.mark.parametrize("header", [{"crit": ["exp"]}, {"b64": False}, {"crit": ["x"], "x": 1}])
def test_a_token_with_critical_extensions_is_refused(header: Mapping[str, Any]) -> None:
    assert refusal(forge({"alg": "RS256", "kid": "k1", "typ": "at+jwt", **header}, b"x")) == "header"


@pytest.mark.parametrize("token_type", ["oauth-id-jag+jwt", "logout+jwt", "dpop+jwt", "secevent+jwt", "JOSE"])
def test_attack_15_a_token_of_another_type_is_refused(token_type: str) -> None:
    assert refusal(sign({"typ": token_type})) == "type"


@pytest.mark.parametrize(
    "claims", [{"nonce": "n"}, {"at_hash": "h"}, {"typ": "ID"}, {"typ": "Refresh"}, {"events": {}}]
)
def test_attack_15_an_id_token_is_no_access_token_even_for_the_right_audience(claims: Mapping[str, Any]) -> None:
    assert refusal(sign({"typ": "JWT"}, **claims)) == "type"


def test_the_type_of_access_tokens_can_be_required() -> None:
    strict = replace(RULES, limits=TokenLimits(require_type=True))
    assert verify_access_token(sign({"typ": "application/at+jwt"}), KEYS, strict, NOW).subject == "alice"
    assert verify_access_token(sign({"typ": "JWT"}), KEYS, RULES, NOW).subject == "alice"
    assert refusal(sign({"typ": "JWT"}), strict) == "type"


@pytest.mark.parametrize("scope", [["tools:call"], 1, {"a": 1}, "a  b", " a", 'a "b"', "a\nb", "x" * 5000])
def test_attack_15_a_scope_that_is_no_text_of_words_is_refused(scope: Any) -> None:
    assert refusal(sign(scope=scope)) == "claims"


def test_scopes_of_providers_that_call_them_scp_are_read() -> None:
    for scp in (["a", "b"], "a b"):
        assert verify_access_token(sign(scope=None, scp=scp), KEYS, RULES, NOW).scopes == {"a", "b"}
    assert verify_access_token(sign(scp="admin"), KEYS, RULES, NOW).scopes == {"tools:read", "tools:call"}
    assert verify_access_token(sign(scope=None), KEYS, RULES, NOW).scopes == frozenset()


@pytest.mark.parametrize("groups", [{"a": 1}, [1], [["a"]], 5, ["x"] * 3000])
def test_groups_that_are_no_list_of_texts_are_refused(groups: Any) -> None:
    assert refusal(sign({"kid": "k1"}, groups=groups)) in ("claims", "malformed")


def test_groups_may_be_inside_other_claims() -> None:
    rules = replace(RULES, groups_claim=("realm_access", "roles"))
    verified = verify_access_token(sign(realm_access={"roles": ["a", "b"]}), KEYS, rules, NOW)
    assert verified.groups == ("a", "b")


def test_a_token_that_is_bound_to_a_key_of_the_client_is_refused() -> None:
    assert refusal(sign(cnf={"jkt": "x"})) == "bound"


@pytest.mark.parametrize("subject", [None, "", 7, "x" * 256])
def test_a_token_without_a_readable_subject_is_refused(subject: Any) -> None:
    assert refusal(sign(sub=subject)) == "claims"


@pytest.mark.parametrize(
    "token",
    [
        "",
        "a.b",
        "a.b.c.d",
        "....",
        "pwt_" + "x" * 40,
        "ä.b.c",
        "e30.e30.e30",
        "!!.!!.!!",
        "W10.W10.eA",
        f"{encode_part({'alg': 'RS256'})}.bm90IGpzb24.eA",
        "x" * 20_000,
    ],
)
def test_text_that_is_no_token_is_refused(token: str) -> None:
    assert refusal(token) in ("malformed", "algorithm", "key")


def test_attack_repeated_members_that_two_parsers_read_differently_are_refused() -> None:
    body = json.dumps(CLAIMS).encode()[:-1] + b',"aud":"https://other.example"}'
    token = jwt.api_jws.encode(body, KEY.private, algorithm="RS256", headers={"kid": "k1", "typ": "at+jwt"})
    assert refusal(token) == "malformed"
    header = b'{"alg":"none","alg":"RS256","kid":"k1"}'
    assert refusal(f"{encode_part(header)}.{encode_part(CLAIMS)}.eA") == "malformed"
