"""Reviews, first uses and sightings, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.gateway.store.approvals import TrustedSurfaces
from pinwarden.gateway.store.reviews import (
    APPROVED,
    PENDING,
    REJECTED,
    STATES,
    SUPERSEDED,
    FirstApproval,
    ObservedDefinitions,
    Review,
    ReviewDecision,
    Reviews,
    Sighting,
    make_storable_name,
)
from pinwarden.surface.surface import Surface, surface_from_listing
from pinwarden.system.database import Database, load_schema, open_database


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = open_database(database_url, load_schema("gateway"))
    yield opened
    opened.close()


@pytest.fixture
def reviews(database: Database) -> Reviews:
    return Reviews(database)


def change(item: str = "search", digest: str = "sha256:aa", at: str = "2026-01-01T00:00:00Z") -> Review:
    return Review(
        name="",
        server="files",
        baseline="first-use",
        entity="tool",
        item=item,
        digest=digest,
        expected="sha256:00",
        definition="{}",
        level="review",
        code="description_changed",
        reason="It says something else.",
        opened=at,
        last_seen=at,
    )


def states(reviews: Reviews) -> dict[str, str]:
    return {review.digest: review.state for review in reviews.select(STATES)}


def surface(*names: str) -> Surface:
    return surface_from_listing({"tools": [{"name": name, "inputSchema": {}} for name in names]})


def test_a_change_is_pending_once_however_often_it_is_seen(reviews: Reviews) -> None:
    (first,) = reviews.add([change()])
    assert reviews.add([change(at="2026-01-02T00:00:00Z")]) == []
    assert reviews.select() == [replace(first, last_seen="2026-01-02T00:00:00Z")]
    assert reviews.find(first.name[:6]).name == reviews.get(first.name).name == first.name


def test_the_name_of_a_review_is_that_of_its_content(reviews: Reviews) -> None:
    held = reviews.add([change(), change(digest="sha256:bb"), change(item="other")])
    held += reviews.add([replace(change(), expected="sha256:11"), replace(change(), server="mail")])
    assert len({review.name for review in held}) == 5


def test_another_change_of_the_item_supersedes_the_pending_one(reviews: Reviews) -> None:
    (old,) = reviews.add([change()])
    reviews.add([change(digest="sha256:bb")])
    assert states(reviews) == {"sha256:aa": SUPERSEDED, "sha256:bb": PENDING}
    with pytest.raises(PinwardenError) as caught:
        reviews.decide([old], ReviewDecision(state=APPROVED, by="me", why="", now=""))
    assert caught.value.code == "REVIEW_STALE"
    reviews.add([change()])  # a server that goes back and forth
    assert states(reviews) == {"sha256:aa": PENDING, "sha256:bb": SUPERSEDED}


def test_a_rejected_change_is_not_pending_again(reviews: Reviews) -> None:
    (held,) = reviews.add([change()])
    reviews.decide([held], ReviewDecision(state=REJECTED, by="me", why="no", now="2026-01-03T00:00:00Z"))
    reviews.add([change(at="2026-01-04T00:00:00Z")])
    assert reviews.select() == []
    assert states(reviews) == {"sha256:aa": REJECTED}


def test_of_two_first_approvals_at_the_same_time_one_counts_and_the_second_needs_it(reviews: Reviews) -> None:
    (held,) = reviews.add([change()])

    def approval(identity: str) -> FirstApproval:
        return FirstApproval(name=held.name, identity=identity, approved_by=identity, why="", approved="now")

    def outcome(identity: str) -> str:
        try:
            reviews.record_first_approval(held, approval(identity))
        except PinwardenError as err:
            return err.code
        return identity

    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(outcome, ("ana", "bob", "carol", "dora")))
    (winner,) = (each for each in outcomes if each != "REVIEW_STALE")
    assert reviews.list_first_approvals() == {held.name: approval(winner)}
    decision = ReviewDecision(state=APPROVED, by="x", why="", now="now", first=approval("eve"))
    with pytest.raises(PinwardenError) as caught:
        reviews.decide([held], decision)
    assert caught.value.code == "REVIEW_STALE"
    reviews.decide([held], replace(decision, first=approval(winner)))
    assert (states(reviews), reviews.list_first_approvals()) == ({"sha256:aa": APPROVED}, {})


def test_a_decision_about_several_is_made_about_all_or_none(reviews: Reviews) -> None:
    first, second = reviews.add([change("a"), change("b")])
    reviews.decide([second], ReviewDecision(state=REJECTED, by="me", why="", now=""))
    with pytest.raises(PinwardenError) as caught:
        reviews.decide([first, second], ReviewDecision(state=APPROVED, by="me", why="", now=""))
    assert caught.value.code == "REVIEW_STALE"
    assert [review.name for review in reviews.select()] == [first.name]


def test_a_change_is_superseded_when_the_approved_item_is_served_again(reviews: Reviews) -> None:
    reviews.add([change("a"), change("b")])
    reviews.supersede("files", "first-use", {("tool", "a")})
    assert [review.item for review in reviews.select()] == ["b"]


@pytest.mark.parametrize("name", ["", "abc", "0000000000000000", "' OR 1=1", "ä" * 16])
def test_an_unknown_name_is_not_found(name: str, reviews: Reviews) -> None:
    reviews.add([change()])
    with pytest.raises(PinwardenError) as caught:
        reviews.find(name)
    assert caught.value.code == "REVIEW_NOT_FOUND"
    with pytest.raises(PinwardenError) as caught:
        reviews.get(name)
    assert caught.value.code == "REVIEW_NOT_FOUND"


def test_a_server_that_always_changes_does_not_fill_the_disk(reviews: Reviews, database: Database) -> None:
    for number in range(60):
        reviews.add([change(digest=f"sha256:{number:02}", at=f"2026-01-01T00:00:{number:02}Z")])
    assert len(reviews.select(STATES)) <= 22
    assert [review.digest for review in reviews.select()] == ["sha256:59"]
    observed = ObservedDefinitions(database)
    observed.record(sighting(digest=f"sha256:{number:02}") for number in range(60))
    assert len(observed.list_all()) == 20


# First use


def test_the_first_surface_of_a_server_is_trusted_and_stays(database: Database) -> None:
    trusted = TrustedSurfaces(database)
    assert (trusted.find("files"), trusted.read_generation("files"), trusted.list_servers()) == (None, 0, [])
    kept = trusted.trust_first_use("files", surface("a"), "2026-01-01T00:00:00Z")
    again = trusted.trust_first_use("files", surface("a", "evil"), "2026-01-02T00:00:00Z")
    assert again == kept == trusted.find("files")
    assert [item.name for item in again.surface.all_items()] == ["a"]
    assert trusted.list_servers() == ["files"]


def test_of_concurrent_first_uses_one_is_trusted(database: Database) -> None:
    trusted = TrustedSurfaces(database)
    with ThreadPoolExecutor(6) as threads:
        kept = list(
            threads.map(lambda number: trusted.trust_first_use("files", surface(f"t{number}"), "now"), range(6))
        )
    assert len({surface.surface.digest for surface in kept}) == 1


def test_an_approval_applies_only_to_the_surface_it_was_given_for(database: Database) -> None:
    trusted = TrustedSurfaces(database)
    first = trusted.trust_first_use("files", surface("a"), "t0")
    trusted.approve(first, surface("a", "b"), by="me", why="seen", now="t1")
    stored = trusted.find("files")
    assert stored is not None
    assert (stored.generation, stored.since, stored.changed, stored.changed_by, stored.why) == (
        2,
        "t0",
        "t1",
        "me",
        "seen",
    )
    with pytest.raises(PinwardenError) as caught:
        trusted.approve(first, surface("a", "c"), by="you", why="late", now="t2")
    assert caught.value.code == "REVIEW_STALE"
    assert trusted.find("files") == stored


def test_a_surface_that_cannot_be_digested_is_not_trusted(database: Database) -> None:
    trusted = TrustedSurfaces(database)
    with pytest.raises(PinwardenError) as caught:
        trusted.trust_first_use("files", surface_from_listing({"tools": [{"title": "no name"}]}), "t0")
    assert caught.value.code == "SURFACE_INVALID"
    assert trusted.find("files") is None


def test_an_edited_text_of_a_trusted_surface_is_an_error(database: Database) -> None:
    trusted = TrustedSurfaces(database)
    trusted.trust_first_use("files", surface("safe"), "t0")
    with database.transaction() as step:
        step.run("UPDATE trusted SET surface = REPLACE(surface, 'safe', 'evil')")
    with pytest.raises(PinwardenError) as caught:
        trusted.find("files")
    assert caught.value.code == "SURFACE_INVALID"


def test_a_forgotten_server_is_new_again(database: Database) -> None:
    trusted = TrustedSurfaces(database)
    trusted.trust_first_use("files", surface("a"), "t0")
    assert (trusted.forget("files"), trusted.forget("files")) == (True, False)
    assert trusted.find("files") is None


# Sightings


def sighting(item: str = "search", digest: str = "sha256:aa", at: str = "t0", action: str = "allow") -> Sighting:
    return Sighting(
        server="files",
        entity="tool",
        item=item,
        digest=digest,
        definition="{}",
        action=action,
        first_seen=at,
        last_seen=at,
    )


def test_sightings_say_when_first_when_last_and_in_how_many_sessions(database: Database) -> None:
    observed = ObservedDefinitions(database)
    observed.record([sighting(), sighting("other")])
    observed.record([sighting(at="t1", action="block")])
    assert observed.list_all() == [
        sighting("other"),
        replace(sighting(action="block"), last_seen="t1", sessions=2),
    ]


@pytest.mark.parametrize("name", ["a\0b", "x" * 100_000, "\ud800", "ä" * 5000])
def test_a_name_that_databases_cannot_store_is_escaped(name: str, database: Database) -> None:
    observed = ObservedDefinitions(database)
    observed.record([sighting(make_storable_name(name)), sighting(make_storable_name(f"{name}!"))])
    assert len({sighting.item for sighting in observed.list_all()}) == 2
