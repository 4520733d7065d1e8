"""A registry of bundles: the service, its transparency log, the client side and the HTTP API.

Start with ``registry.py`` (one registry), ``publish.py`` and ``read_api.py``. ``log_client.py`` follows a log and
proves that it only grew. ``store/`` holds the tables, ``blobs/`` the archives, ``http/`` the web application.
Documents (``statement.py``, ``version.py``, ``layout.py`` ...) and log rules are pure.
"""
