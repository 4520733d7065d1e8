"""The entitlements of handlers, from source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pinwarden.rules.entitlements.values import Analysis, Entitlements, Handler, Source


def entitlements_of(
    sources: Mapping[str, Source], handlers: Iterable[Handler], packages: Mapping[str, Source] | None = None
) -> Mapping[str, Entitlements]:
    """What each handler can do, by the name of its tool.

    ``sources`` are the server's own modules by their dotted name. ``packages`` are modules of third-party packages to
    look into where the maintained table knows nothing about them; only its ``get`` is used, so it may read lazily.
    """
    return analyse(sources, handlers, packages).handlers


def analyse(
    sources: Mapping[str, Source], handlers: Iterable[Handler], packages: Mapping[str, Source] | None = None
) -> Analysis:
    """As ``entitlements_of``, with what the server does while it is imported."""
    raise NotImplementedError


def handlers_in(sources: Mapping[str, Source]) -> tuple[Handler, ...]:
    """The tools that the source registers, with where their code begins."""
    raise NotImplementedError
