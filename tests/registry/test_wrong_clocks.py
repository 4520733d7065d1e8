"""A wrong clock is likelier than an attack, so the hint says so."""

from __future__ import annotations

from typing import Any

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.registry.log_verification import check_head_age
from pinwarden.registry.registry_client import _build_refusal
from tests.registry.world import World, bundle


def _hint(act: Any, *args: Any) -> tuple[str, str]:
    with pytest.raises(PinwardenError) as caught:
        act(*args)
    return caught.value.code, caught.value.hint


def test_a_request_from_a_machine_whose_clock_is_wrong_is_refused_with_a_hint_about_the_clock(world: World) -> None:
    made = bundle()
    request = world.request(made)
    world.clock.pass_by(hours=2)
    code, hint = _hint(world.send, request, made)
    assert (code, "clock" in hint) == ("REQUEST_STALE", True)


def test_a_log_head_from_the_future_is_refused_with_a_hint_about_the_clock() -> None:
    code, hint = _hint(check_head_age, "2030-01-01T00:00:00Z", "2026-01-01T00:00:00Z", 7)
    assert (code, "clock" in hint) == ("LOG_FROZEN", True)


def test_an_unknown_error_code_of_a_newer_registry_is_reported() -> None:
    said = {"error": {"code": "NEWER_CODE", "message": "this namespace is frozen"}}
    err = _build_refusal(said, 422, "https://registry.example/")
    assert "NEWER_CODE: this namespace is frozen" in err.message
    assert "network" not in err.hint


def test_the_hint_of_a_registry_reaches_the_publisher() -> None:
    said = {"error": {"code": "REQUEST_STALE", "message": "signed in the past", "hint": "Check this machine's clock."}}
    assert _build_refusal(said, 409, "https://registry.example/").hint == "Check this machine's clock."
