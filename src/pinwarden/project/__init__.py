"""The commands for one project or user: init, lock, approve, update, prove, fetch, ci, enforce, doctor, run.

Start with ``project.py`` (a project's files and policies) and the modules of the command:

==========================  ========================================================================================
init, setup                 init, init_decisions, init_report; configured_entry builds the lock entries
lock, verify                lock, lock_documents, verify; lock_signatures for ``lock sign``
approve                     servers_to_approve, approve, approval_candidate
pin                         floating_releases, pin
prove, fetch                prove, fetch; artifact_check verifies the bytes, fetch_context downloads and resolves,
                            api_surfaces records the API surface hash
outdated, update            newer_releases, newer_dependencies, update; guided_update and lock_draft for one server
ci                          gate.check, gate.integrity, gate.online, gate.repository_check, gate.skills_check;
                            gate.gate_report builds the report, gate.rule_texts explains its codes
enforce                     enforce, enforced_entry, enforcement_preview
``--undo``                  client_edits, edit_backups, undo_edits, undo_entries, undo_report
run, gateway                authority (which lock and policy apply), run, server_start (every start of a server),
                            server_environments, installed_bundles
doctor, status, explain     doctor, status, status_report, explain, missing_programs, locked_files
scan, diff, inspect         scan_targets, surface_reports
secrets audit               secrets_audit, config_secrets
policy                      policy_commands
sbom, advisories            locked_packages
bundle pack                 bundle_packages, for the packages of a Python server
==========================  ========================================================================================

``configs`` and ``configured_servers`` compare client configurations with the lock. ``scopes`` runs a command for
several locks, and ``next_step`` chooses the last line of a report. Modules return a report (``core/report.py``) and
print nothing.
``configured_servers.py`` and ``config_secrets.py`` are pure. Must not import ``install`` or ``gateway``.
"""
