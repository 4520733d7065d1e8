"""Install and update bundles from a registry.

Start with ``install.py``: it downloads and checks a bundle (``bundle_download.py``), stages it (``staging.py``), and
writes the lock and the client files. ``bundle_update.py`` does the same for newer versions, and ``skill_install.py``
and ``skill_update.py`` for skills, whose folders ``folder_writes.py`` writes. ``sources.py`` reads registries,
``registry_log.py`` follows transparency logs, and ``bundle_fetcher.py`` fetches locked bundles.
``container_images.py`` locks an image by its digest, and ``trust_commands.py`` edits the trust store. Only
``decision.py`` is pure; it builds on ``bundle/acceptance.py`` and ``registry/log_verification.py``. This package must
not import ``gateway``.
"""
