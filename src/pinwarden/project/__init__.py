"""The commands for one project or user: init, lock, approve, update, prove, fetch, ci, enforce, doctor, run.

Start with ``project.py`` (where a project's files are) and the module named after the command. ``gate/check.py`` is
``pinwarden ci``; ``server_start.py`` is the one step before any server is started; ``configs.py`` compares client
configurations with the lock; ``artifact_check.py`` and ``fetch_context.py`` download and verify bytes. Modules return a
report (``core/report.py``) and print nothing. ``config_diagnosis.py``, ``config_secrets.py`` and ``server_identity.py``
are pure. Must not import ``install`` or ``gateway``.
"""
