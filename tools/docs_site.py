"""A hook of MkDocs: links to files outside ``docs`` become text, because the site does not have those files."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((?![a-z]+:|#)([^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by MkDocs with the text of a page before it is rendered."""
    folder = posixpath.dirname(page.file.src_uri)

    def unlink(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2].partition("#")[0]))
        return link[1] if target.startswith("../") else link[0]

    return _LINK.sub(unlink, markdown)
