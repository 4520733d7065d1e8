"""Generate the page of findings from the tables in the modules that report them."""

from __future__ import annotations

from pinwarden.artifacts.artifact_drift import ARTIFACT_KINDS
from pinwarden.artifacts.provenance_drift import PROVENANCE_KINDS
from pinwarden.clients.drift import CONFIG_KINDS
from pinwarden.clients.findings import FINDING_KINDS
from pinwarden.contract.costs import COST_KINDS
from pinwarden.contract.diff_report import CONTRACT_CHANGE_KINDS
from pinwarden.contract.entitlement_findings import CONTRACT_KINDS
from pinwarden.core.record import Record
from pinwarden.core.report import FindingKind, FindingKinds
from pinwarden.lock.lockfile import INFO_CODES, PROBLEMS
from pinwarden.lock.policy import RULE_KINDS
from pinwarden.lock.toolpin_pins import INCONCLUSIVE_CODE, PIN_FINDINGS
from pinwarden.project.api_surfaces import API_SURFACE_KINDS
from pinwarden.project.client_install import CLIENT_UPDATE_KINDS
from pinwarden.project.configs import FLOATING_KINDS
from pinwarden.project.doctor import ISSUE_KINDS, PROGRAM_KINDS
from pinwarden.project.gate.check import LOCK_REQUIRED_KINDS, POLICY_KINDS
from pinwarden.project.gate.integrity import LIVE_KINDS, LOCK_KINDS
from pinwarden.project.gate.online import REGISTRY_KINDS
from pinwarden.project.gate.repository_check import COVERAGE_KINDS
from pinwarden.project.init_decisions import LOCKING_KINDS
from pinwarden.project.install_scripts import SCRIPT_KINDS
from pinwarden.project.installed_bundles import YANK_KINDS
from pinwarden.project.lock_signatures import SIGNATURE_KINDS
from pinwarden.project.locked_packages import SBOM_KINDS, VULNERABILITY_KINDS
from pinwarden.project.newer_dependencies import DEPENDENCY_KINDS
from pinwarden.project.newer_releases import UPDATE_KINDS
from pinwarden.project.pin import PIN_KINDS
from pinwarden.project.secrets_audit import SECRET_KINDS
from pinwarden.project.undo_report import UNDO_KINDS
from pinwarden.skills.skill_drift import SKILL_KINDS
from pinwarden.skills.skill_scan import MESSAGES as SKILL_MESSAGES
from pinwarden.surface import interop as toolpin
from pinwarden.surface.scan.cues import ATTACK_CODES, CUE_CODES
from pinwarden.surface.scan.scan import MESSAGES


def text_kinds() -> FindingKinds:
    """List the advisories of the scan. A phrase that the text only quotes has the severity ``info``."""
    quiet = set(CUE_CODES) - ATTACK_CODES
    ours = [
        FindingKind(kind=code, severity="info" if code in quiet else "warning", reason=f"It {message}.")
        for code, message in MESSAGES.items()
    ]
    named = [value for value in vars(toolpin).values() if isinstance(value, toolpin.Advisory)]
    theirs = [
        FindingKind(kind=advisory.code, severity=advisory.severity, reason=f"ToolPin's: {advisory.message}.")
        for advisory in (*named, toolpin.build_duplicate_name_advisory(2), toolpin.build_cross_tool_advisory("NAME"))
    ]
    return {kind.kind: kind for kind in (*ours, *theirs)}


def skill_text_kinds() -> FindingKinds:
    """List the codes that only the scan of skills reports."""
    codes = SKILL_MESSAGES.keys() - MESSAGES.keys()
    return {
        code: FindingKind(kind=code, severity="warning", reason=f"It {message}.")
        for code, message in SKILL_MESSAGES.items()
        if code in codes
    }


def _problems() -> FindingKinds:
    return {
        code: FindingKind(kind=code, severity="info" if code in INFO_CODES else "critical", reason=_sentence(text))
        for code, text in PROBLEMS.items()
    }


def _pins() -> FindingKinds:
    rows = ((code, text) for code, text in PIN_FINDINGS.items() if code != INCONCLUSIVE_CODE)
    return {code: FindingKind(kind=code, severity="critical", reason=text) for code, text in rows}


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


class Section(Record):
    """A section of the page: related findings under one heading."""

    heading: str
    commands: str
    """The commands that report them."""
    tables: tuple[FindingKinds, ...]


SECTIONS = (
    Section(
        heading="Live servers that are approved only by ToolPin's hashes",
        commands="`ci --live`",
        tables=(_pins(),),
    ),
    Section(
        heading="Suspicious text",
        commands="`scan`, which does not fail by default; a phrase that the text only quotes has the level `info`",
        tables=(text_kinds(),),
    ),
    Section(
        heading="Client configurations, compared with the lock",
        commands="`init`, `ci`, `doctor`",
        tables=(CONFIG_KINDS, ISSUE_KINDS),
    ),
    Section(
        heading="Risky settings, and this machine",
        commands="`init`, `ci`, `doctor`",
        tables=(FINDING_KINDS, LOCKING_KINDS, PROGRAM_KINDS),
    ),
    Section(
        heading="Skills, compared with the lock",
        commands="`init`, `approve`, `ci`",
        tables=(SKILL_KINDS, skill_text_kinds()),
    ),
    Section(heading="Plaintext secrets", commands="`secrets audit`", tables=(SECRET_KINDS,)),
    Section(
        heading="The lock itself",
        commands="`ci`, `list`, `lock digest`, `lock verify-signature`",
        tables=(
            _problems(),
            LOCK_KINDS,
            LIVE_KINDS,
            SIGNATURE_KINDS,
            POLICY_KINDS,
            LOCK_REQUIRED_KINDS,
            COVERAGE_KINDS,
            FLOATING_KINDS,
        ),
    ),
    Section(
        heading="Rules of the policy",
        commands="`ci`, `update`, `policy check`",
        tables=(RULE_KINDS,),
    ),
    Section(
        heading="Changes at the registries",
        commands="`ci --registry`, `outdated`, `update`, `pin`",
        tables=(REGISTRY_KINDS, UPDATE_KINDS, CLIENT_UPDATE_KINDS, PIN_KINDS, YANK_KINDS, API_SURFACE_KINDS),
    ),
    Section(
        heading="Edits that were undone",
        commands="`--undo` of `enforce`, `pin`, `update`, `add`, `remove` and `install`",
        tables=(UNDO_KINDS,),
    ),
    Section(
        heading="Package bytes and publishers",
        commands="`prove`, `fetch`, `ci --bytes`, `update`",
        tables=(ARTIFACT_KINDS, PROVENANCE_KINDS),
    ),
    Section(
        heading="Dependencies",
        commands="`prove`, `update`, `ci`, `sbom`, `advisories`",
        tables=(DEPENDENCY_KINDS, SCRIPT_KINDS, VULNERABILITY_KINDS, SBOM_KINDS),
    ),
    Section(
        heading="Contracts of server authors",
        commands="`contract check`, `contract diff`, `contract tokens`, `verify --contract`",
        tables=(CONTRACT_KINDS, CONTRACT_CHANGE_KINDS, COST_KINDS),
    ),
)


def findings_page() -> str:
    return (
        "# Findings\n\n"
        "<!-- Generated by tools/findings_page.py from the tables of kinds in src/pinwarden. -->\n\n"
        "All findings of the commands, by code: `code` or `kind` in JSON output, `ruleId` in SARIF, `type` in JUnit.\n"
        "Codes are stable, so scripts may match on them. The sentences may change between releases.\n\n"
        "`critical` and `review` findings fail a run with exit code 1; `warning` and `info` do not. A check that\n"
        "could not be completed is `could_not_check` at the level `review`; if nothing is worse, the exit code is 3.\n"
        "Policy violations have the code of the rule, which a waiver names. If a command fails, it reports one of the\n"
        "[error codes](errors.md); if only one of several servers fails, the error is a finding with its\n"
        "code in lower case.\n\n"
        "Differences between a server and its approved surface (`diff`, `ci --live`, `review`, the gateway) have\n"
        "[kinds of change](changes.md) as codes.\n" + "".join(map(_section, SECTIONS))
    )


def _section(section: Section) -> str:
    rows = "".join(
        f"| `{kind.kind}` | {kind.severity} | {kind.reason} |\n" for table in section.tables for kind in table.values()
    )
    return (
        f"\n## {section.heading}\n\nReported by: {section.commands}.\n\n"
        f"| code | level | what it means |\n|---|---|---|\n{rows}"
    )
