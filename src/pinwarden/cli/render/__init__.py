"""Renders a report as text, JSON, SARIF, Markdown, JUnit XML or GitHub annotations; one module per format."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinwarden.core.errors import PinwardenError
    from pinwarden.core.report import Report

FORMATS = ("text", "json", "sarif", "markdown", "junit", "github")


def render(report: Report, form: str, *, colour: bool = False) -> str:
    """Render a report in one of the formats. Only the module of that format is imported."""
    if form == "text":
        from pinwarden.cli.render.text import render_text

        return render_text(report, colour=colour)
    function: Callable[[Report], str] = import_module(f"pinwarden.cli.render.{form}").render
    return function(report)


def render_error(err: PinwardenError, command: str, form: str) -> str:
    """Render an error as a complete document of the format. Empty for text: stderr shows it."""
    if form == "text" or form not in FORMATS:
        return ""
    function: Callable[[PinwardenError, str], str] = import_module(f"pinwarden.cli.render.{form}").render_error
    return function(err, f"pinwarden {command}".rstrip())
