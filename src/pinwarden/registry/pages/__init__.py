"""The pages of a registry for people: search, packages, publishers, the log, and feeds. Live and in a static export.

Start with ``site.py``, which finds the page at a path. The pages need no script, and their links are relative.
"""
