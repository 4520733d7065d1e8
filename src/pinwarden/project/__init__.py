"""The commands for one project or user: init, pin, lock, update, prove, check, enforce, doctor, run.

Start with ``project.py`` (where a project's files are) and the module named like the command. ``gate/check.py`` is
``pinwarden ci``, ``server_start.py`` is the one step before any server is started. Modules return a report
(``core/report.py``) and print nothing. Must not import ``gateway``.
"""
