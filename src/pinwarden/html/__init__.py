"""The frame of HTML pages: layout, style sheet, Content Security Policy, and the escaping of text from others.

Start with ``pages.py``, which renders a template. ``markup.py`` shows text and its changes with every hidden character
visible. The registry, the census and the dashboard use this package.

Pure module: ``markup``. This package must not import what its pages are about: ``registry``, ``census`` or ``gateway``.
"""
