"""Install and upgrade bundles from a registry.

Start with ``install.py``: decide (``decision.py``: the acceptance steps, the transparency log, every byte), stage
(``staging.py``), write the lock and the client files. ``upgrade.py`` does the same for newer versions. Bundles come
from ``sources.py``. ``container_images.py`` locks an image by its digest, and ``trust_commands.py`` edits the trust
store. Nothing here is pure: decisions that touch nothing outside are in ``bundle/acceptance.py`` and
``registry/log_verification.py``. Must not import ``gateway``.
"""
