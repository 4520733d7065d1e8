"""Decisions about lists, requests, results and the server itself. Pure: values in, a `Verdict` or `Refusal` out."""
