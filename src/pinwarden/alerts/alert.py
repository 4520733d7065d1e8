"""An alert, and its form in each kind of message. Pure.

Text of a server is hostile: it is shortened, invisible characters are made visible, and it is sent as plain text in
every format, so that it can neither mention a person nor be a link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.text import plural, show_invisible
from pinwarden.core.typed_json import JsonObject

REVIEW = "review"
"""Changes are pending review."""
CRITICAL = "critical"
"""Changes are pending review, and at least one may be an attack."""
AUDIT = "audit"
"""The audit log has a fault, or its database is unavailable."""
PUBLISH = "publish"
"""A registry refused a publisher's request."""
TOPICS = (REVIEW, CRITICAL, AUDIT, PUBLISH)

_MAX_ITEMS = 10  # items that a message lists; the others are counted
_MAX_TEXT = 300  # characters of one text in a message


class AlertItem(Record):
    """One thing that an alert is about."""

    name: str
    level: str
    reason: str
    review: str = ""
    """The name of the review, for ``pinwarden review show``."""


class Alert(Record):
    """What people have to know, the same for every destination."""

    topic: str
    subject: str
    """The server, namespace or database that it is about."""
    count: int
    """The number of items, of which ``items`` has the first ones."""
    items: tuple[AlertItem, ...]
    command: str
    """What to run next."""

    @property
    def title(self) -> str:
        """The alert in one line."""
        subject = clean_text(self.subject)
        if self.topic == REVIEW:
            return f"{subject}: {plural(self.count, 'change')} pending review"
        if self.topic == CRITICAL:
            return f"{subject}: {plural(self.count, 'change')} pending review, of which some may be an attack"
        if self.topic == PUBLISH:
            return f"{subject}: {plural(self.count, 'request')} of publishers refused"
        return f"{subject}: {plural(self.count, 'fault')} of the audit log"

    def lines(self) -> list[str]:
        """Return a line for each item, and one for those that are not listed."""
        lines = [f"{item.level}  {clean_text(item.name)}: {clean_text(item.reason)}" for item in self.items]
        rest = self.count - len(self.items)
        return [*lines, f"and {rest} more"] if rest else lines


def build_alert(topic: str, subject: str, items: Sequence[AlertItem], command: str) -> Alert:
    """Return the alert about some items, those first that may be an attack."""
    ordered = sorted(items, key=lambda item: item.level != CRITICAL)
    return Alert(topic=topic, subject=subject, count=len(items), items=tuple(ordered[:_MAX_ITEMS]), command=command)


def clean_text(text: str) -> str:
    """Return text as one line of limited length in which every character is visible."""
    shown = show_invisible(text)
    return shown if len(shown) <= _MAX_TEXT else f"{shown[: _MAX_TEXT - 1]}…"


def alert_to_json(alert: Alert) -> dict[str, Any]:
    """Return the alert as it is stored, and as a webhook gets it in ``data``."""
    return {
        "topic": alert.topic,
        "subject": clean_text(alert.subject),
        "title": alert.title,
        "count": alert.count,
        "items": [
            {
                "name": clean_text(item.name),
                "level": item.level,
                "reason": clean_text(item.reason),
                "review": item.review,
            }
            for item in alert.items
        ],
        "command": alert.command,
    }


def alert_from_json(value: object) -> Alert:
    """Parse a stored alert. Raises ``DATABASE_CORRUPT``."""
    table = JsonObject(value, "alert", _corrupt)
    return Alert(
        topic=table.string("topic"),
        subject=table.string("subject"),
        count=table.integer("count"),
        items=tuple(
            AlertItem(
                name=item.string("name"),
                level=item.string("level"),
                reason=item.string("reason"),
                review=item.string("review"),
            )
            for item in table.objects("items")
        ),
        command=table.string("command"),
    )


def _corrupt(path: str, problem: str) -> PinwardenError:
    return PinwardenError("DATABASE_CORRUPT", f"a stored alert is malformed: {path} {problem}")


# Messages


def render_webhook(alert: Alert, identifier: str, time: str) -> dict[str, Any]:
    """Return the body of a webhook, as Standard Webhooks describes it."""
    return {"type": f"pinwarden.{alert.topic}", "timestamp": time, "id": identifier, "data": alert_to_json(alert)}


def render_slack(alert: Alert, _identifier: str = "", _time: str = "") -> dict[str, Any]:
    """Return the body for an incoming webhook of Slack. Plain text elements have no mentions and no links."""
    texts = [*alert.lines(), f"Next: {alert.command}"]
    blocks: list[Mapping[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": alert.title[:150], "emoji": False}}
    ]
    blocks += [{"type": "section", "text": {"type": "plain_text", "text": text, "emoji": False}} for text in texts]
    return {"text": _escape_for_slack(alert.title), "blocks": blocks}


def _escape_for_slack(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def render_teams(alert: Alert, _identifier: str = "", _time: str = "") -> dict[str, Any]:
    """Return an Adaptive Card for a workflow of Teams. Text runs are not parsed as Markdown."""
    texts = [*alert.lines(), f"Next: {alert.command}"]
    body: list[dict[str, Any]] = [_build_text_run(alert.title, {"weight": "Bolder", "size": "Medium"})]
    body += [_build_text_run(text, {}) for text in texts]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": body,
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return {"type": "message", "attachments": [attachment]}


def _build_text_run(text: str, style: Mapping[str, str]) -> dict[str, Any]:
    return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": text, **style}]}


def render_email(alert: Alert) -> tuple[str, str]:
    """Return the subject and the text of an e-mail."""
    lines = [alert.title, "", *(f"  {line}" for line in alert.lines()), "", f"Next: {alert.command}", ""]
    return f"Pinwarden: {alert.title}", "\n".join(lines)


class WebMessage(Record):
    """How alerts are sent to one kind of web address."""

    render: Callable[[Alert, str, str], dict[str, Any]]
    """Returns the body for an alert, its identifier and the time."""
    signed: bool = False
    """Whether the destination has a secret, with which the body is signed."""


WEB_MESSAGES: Mapping[str, WebMessage] = {
    "webhook": WebMessage(render=render_webhook, signed=True),
    "slack": WebMessage(render=render_slack),
    "teams": WebMessage(render=render_teams),
}
"""The kinds of web addresses. A new one needs a row here and a function that renders it."""
