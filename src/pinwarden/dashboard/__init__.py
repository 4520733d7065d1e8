"""The dashboard: pages on which a person decides about the changes that a gateway blocked.

Start with ``app.py``: every request passes its checks (host, session, origin, CSRF token) and then reaches a page or
an action. ``access.py`` has people, sessions and one-time codes. ``pages.py`` finds the page at a path, whose values
``overview.py`` or a module with ``_pages`` in its name builds. ``decisions.py`` does what a form asks for, with the
functions of ``pinwarden review``.

Pure module: none. This package must not import ``cli``. It decides nothing itself: approvals go through
``gateway/review.py``.
"""
