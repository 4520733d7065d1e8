"""The commands for one project or user: init, lock, approve, update, prove, fetch, ci, enforce, doctor, run.

Start with ``project.py`` (a project's files and policies) and the module named after the command. ``gate/check.py`` is
``pinwarden ci``; ``server_start.py`` prepares every start of a server; ``configs.py`` compares client configurations
with the lock; ``artifact_check.py`` and ``fetch_context.py`` download and verify bytes. Modules return a report
(``core/report.py``) and print nothing. ``configured_servers.py`` and ``config_secrets.py`` are pure. Must not import
``install`` or ``gateway``.
"""
