"""Install and upgrade bundles from a registry.

Start with ``install.py``: decide (``decision.py``), stage (``staging.py``), write the lock (``lock_entries.py``).
``upgrade.py`` does the same for newer versions, ``yanked.py`` says why a registry withdrew one. Nothing here is pure;
decisions are in ``bundle/acceptance`` and ``registry/log_verification.py``.
"""
