"""ToolPin's and Fusion's canonical JSON, byte for byte as the originals wrote them."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from pinwarden import Digest, PinwardenError, canonicalize
from tests.conformance.vectors import cases, load


@pytest.mark.parametrize("case", cases(load("toolpin/micro/canonical-json.json"), label="input"))
def test_canonical_form_equals_that_of_toolpin(case: dict[str, Any]) -> None:
    data = case["input"].encode()
    if "error" in case:
        with pytest.raises(PinwardenError) as caught:
            canonicalize(data, "toolpin")
        assert caught.value.code == "JSON_CANONICALIZATION_ERROR"
        return
    canonical = canonicalize(data, "toolpin")
    assert canonical.decode() == case["canonical"]
    assert Digest.of_bytes(canonical).hex == case["sha256hex"]
    assert Digest.of_bytes(canonical).sri == case["sri"]


@pytest.mark.parametrize("case", cases(load("fusion/canonical.json")))
def test_canonical_form_equals_that_of_fusion(case: dict[str, Any]) -> None:
    canonical = canonicalize(case["jsonText"].encode(), "fusion")
    assert canonical.decode() == case["canonical"]
    assert sha256(canonical).hexdigest() == case["sha256"]
