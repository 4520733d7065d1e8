"""Which item of the approved list is which item of the list now, whatever their order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pinwarden.core.record import Record, field
from pinwarden.surface.surface import RESOURCE, TEMPLATE, Item


class Pairing(Record):
    """Two lists of one kind, sorted out."""

    changed: list[tuple[Item, Item]] = field(default_factory=list)
    """Approved items and what stands in their place now, where these differ."""
    duplicates: list[tuple[Item | None, Item]] = field(default_factory=list)
    """Further items under a name that is taken, each with the approved item of that name, approved twice or not."""
    gone: list[Item] = field(default_factory=list)
    fresh: list[Item] = field(default_factory=list)
    undigestable: list[tuple[Item | None, Item]] = field(default_factory=list)
    """Items now that have no digest, each with the approved item that it may be."""


def pair_items(before: Sequence[Item], after: Sequence[Item]) -> Pairing:
    """Match by name, or by address and then by name; among items of one name an exact copy goes first."""
    pairing = Pairing()
    approved, offered = _by_key(before), _by_key(after)
    for key, items in offered.items():
        if key in approved:
            _pair_group(pairing, approved[key], items)
        else:
            pairing.fresh.append(items[0])
            pairing.duplicates.extend((None, item) for item in items[1:])
    gone = {key: items for key, items in approved.items() if key not in offered}
    _settle_undigestable(pairing, gone, after)
    pairing.gone.extend(item for items in gone.values() for item in items)
    if pairing.gone and pairing.fresh and pairing.gone[0].kind in (RESOURCE, TEMPLATE):
        _pair_moved(pairing)
    return pairing


def _by_key(items: Iterable[Item]) -> dict[str, list[Item]]:
    groups: dict[str, list[Item]] = {}
    for item in items:
        if item.digest is not None:
            groups.setdefault(item.key, []).append(item)
    return groups


def _pair_group(pairing: Pairing, approved: list[Item], offered: list[Item]) -> None:
    if len(approved) == 1 == len(offered):
        if _raw(approved[0]) != _raw(offered[0]):
            pairing.changed.append((approved[0], offered[0]))
        return
    twins: dict[bytes, list[Item]] = {}
    for item in approved:
        twins.setdefault(_raw(item), []).append(item)
    settled: list[Item] = []
    left: list[Item] = []
    for item in offered:
        exact = twins.get(_raw(item))
        if exact:
            exact.pop()
            settled.append(item)
        else:
            left.append(item)
    unmatched = [item for items in twins.values() for item in items]
    pairs = min(len(unmatched), len(left))
    pairing.changed.extend(zip(unmatched[:pairs], left[:pairs], strict=True))
    # Which of several a host calls depends on their order, so that even those that were approved are reported.
    further = [*settled, *left][1:]
    pairing.duplicates.extend((approved[0], item) for item in further)
    pairing.gone.extend(unmatched[pairs:])


def _raw(item: Item) -> bytes:
    return item.digest.raw if item.digest else b""


def _settle_undigestable(pairing: Pairing, gone: dict[str, list[Item]], after: Sequence[Item]) -> None:
    """An approved item that can no longer be digested is not gone: it is there and cannot be judged."""
    for item in after:
        if item.digest is None:
            approved = gone.pop(item.key, None) if item.key else None
            pairing.undigestable.append((approved[0] if approved else None, item))


def _pair_moved(pairing: Pairing) -> None:
    """A resource whose address changed keeps its name, if only one on each side has that name."""
    old, new = _only_bearers(pairing.gone), _only_bearers(pairing.fresh)
    moved = old.keys() & new.keys()
    pairing.changed.extend((old[name], new[name]) for name in sorted(moved))
    pairing.gone[:] = [item for item in pairing.gone if item.name not in moved]
    pairing.fresh[:] = [item for item in pairing.fresh if item.name not in moved]


def _only_bearers(items: Iterable[Item]) -> dict[str, Item]:
    bearers: dict[str, list[Item]] = {}
    for item in items:
        bearers.setdefault(item.name, []).append(item)
    return {name: items[0] for name, items in bearers.items() if len(items) == 1}
