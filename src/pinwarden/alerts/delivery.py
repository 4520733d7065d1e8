"""The delivery of one alert to one destination. Raises `DeliveryError` if it did not arrive."""

from __future__ import annotations

import base64
import hmac
import json
import smtplib
import ssl
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from hashlib import sha256

from pinwarden.alerts.alert import WEB_MESSAGES, Alert, render_email
from pinwarden.alerts.config import Destination, MailDestination, WebDestination
from pinwarden.core.errors import PinwardenError
from pinwarden.core.text import parse_timestamp
from pinwarden.system.net.connections import ServiceEndpoint
from pinwarden.system.net.fetch import Fetcher, FetchLimits, FetchRequest, FetchRules, UploadBody
from pinwarden.system.target import HttpAddress

_LIMITS = FetchLimits(connect_seconds=10.0, idle_seconds=20.0, total_seconds=40.0, attempts=1)
_MAIL_SECONDS = 20.0


class DeliveryError(Exception):
    """The reason why an alert did not arrive. Names the host, never the path of an address, which may be secret."""


def deliver(alert: Alert, destination: Destination, identifier: str, time: str) -> None:
    """Send an alert. The same identifier is sent again with every attempt."""
    if isinstance(destination, MailDestination):
        _send_mail(alert, destination, identifier, time)
    else:
        _post(alert, destination, identifier, time)


def sign_webhook(secret: str, identifier: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a webhook (Standard Webhooks, v1): HMAC-SHA-256 over id, time and body."""
    signed = f"{identifier}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(secret.encode(), signed, sha256).digest()).decode()


def _post(alert: Alert, destination: WebDestination, identifier: str, time: str) -> None:
    headers: dict[str, str] = {}
    data = json.dumps(WEB_MESSAGES[destination.kind].render(alert, identifier, time)).encode()
    if destination.secret:
        moment = parse_timestamp(time)
        timestamp = int(moment.timestamp()) if moment else 0
        headers = {
            "webhook-id": identifier,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": sign_webhook(destination.secret, identifier, timestamp, data),
        }
    fetcher = Fetcher(FetchRules(allow_private=True, limits=_LIMITS))
    request = FetchRequest(
        endpoint=ServiceEndpoint(url=destination.url, configured_by="argument"),
        url=destination.url,
        upload=UploadBody(method="POST", body=data, media_type="application/json"),
        headers=headers,
    )
    try:
        response = fetcher.send(request, max_bytes=64 * 1024)
    except PinwardenError as err:
        address = HttpAddress.parse(destination.url)
        raise DeliveryError(err.message.replace(str(address), address.host)) from None
    finally:
        fetcher.close()
    if not 200 <= response.status < 300:
        raise DeliveryError(f"{HttpAddress.parse(destination.url).host} responded with status {response.status}")


def _send_mail(alert: Alert, destination: MailDestination, identifier: str, time: str) -> None:
    message = EmailMessage()
    message["Subject"], text = render_email(alert)
    message["From"] = destination.sender
    message["To"] = ", ".join(destination.recipients)
    moment = parse_timestamp(time)
    if moment is not None:
        message["Date"] = format_datetime(moment)
    message["Message-ID"] = make_msgid(identifier, destination.sender.rpartition("@")[2])
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(text)
    try:
        with _connect_to_mail_server(destination) as server:
            if destination.username:
                server.login(destination.username, destination.password)
            server.send_message(message)
    except (smtplib.SMTPException, OSError) as err:
        raise DeliveryError(f"{destination.host}: {_describe_mail_error(err)}") from None


def _connect_to_mail_server(destination: MailDestination) -> smtplib.SMTP:
    if destination.tls == "tls":
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(destination.host, destination.port, timeout=_MAIL_SECONDS, context=context)
    server = smtplib.SMTP(destination.host, destination.port, timeout=_MAIL_SECONDS)
    try:
        if destination.tls == "starttls":
            server.starttls(context=ssl.create_default_context())
    except BaseException:
        server.close()
        raise
    return server


def _describe_mail_error(err: Exception) -> str:
    """Return the reason without the server's own text, which may repeat a credential."""
    code = getattr(err, "smtp_code", None)
    return f"{type(err).__name__}" + (f" {code}" if code is not None else "")
