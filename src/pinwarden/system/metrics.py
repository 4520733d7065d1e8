"""Metrics in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

Labels = Mapping[str, str]
Sample = tuple[Labels, float]


def format_metric(name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> Iterator[str]:
    """Yield the lines of a metric."""
    yield format_metric_header(name, kind, help_text)
    for labels, value in samples:
        yield format_sample(name, labels, value)


def format_metric_header(name: str, kind: str, help_text: str) -> str:
    """Return the lines before the samples of a metric."""
    return f"# HELP pinwarden_{name} {help_text}\n# TYPE pinwarden_{name} {kind}\n"


def format_sample(name: str, labels: Labels, value: float) -> str:
    """Return the line of one sample."""
    text = ",".join(f'{label}="{_escape(content)}"' for label, content in labels.items())
    return f"pinwarden_{name}{f'{{{text}}}' if text else ''} {value!r}\n"


def _escape(value: str) -> str:
    """Escape a label value. Surrogates, which UTF-8 cannot encode, become escape sequences."""
    value = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value.encode("utf-8", "backslashreplace").decode()
