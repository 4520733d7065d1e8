"""Every format of a report: whole with no row, with places, and with text that tries to break out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwarden.cli.output import FORMATS, render, render_error
from pinwarden.core.errors import PinwardenError
from pinwarden.core.report import ROW_SEVERITIES, Report, Row
from pinwarden.core.text import INVISIBLE
from tests.cli.run import pinwarden
from tests.cli.sarif_schema import sarif_problems

HOSTILE = (
    ']]></failure></testcase><x a="\'&">\r\n::error file=a,line=1::owned\n##[error]owned\n'
    "::stop-commands::x\n%0A::warning::y 100% \x00\x08\x1b[2K\x9b\ufffe\ud800\u202e\u2028"
)


def row(**members: Any) -> Row:
    parts = {
        "code": "text_changed",
        "severity": "review",
        "entity": "tool",
        "name": "search",
        "path": "/description",
        "message": "Text that the model or the user reads has changed.",
    }
    return Row(**{**parts, **members})


def report(*rows: Row, exit_code: int = 0, **members: Any) -> Report:
    parts = {"command": "diff", "subject": "a -> b", "summary": "no change", "facts": {}}
    return Report(**{**parts, **members, "rows": rows, "exit_code": exit_code})


def hostile_report(text: str, exit_code: int = 1) -> Report:
    texts = {"entity": text, "name": text, "path": text, "message": text, "before": text, "after": text, "file": text}
    rows = [row(severity=level, line=1, column=1, **texts) for level in ROW_SEVERITIES]
    rows.append(row(excerpt=text, server=text))
    return report(*rows, exit_code=exit_code, subject=text, summary=text, notes=(text,), facts={"text": "-"})


def workflow_commands(output: str) -> list[tuple[str, dict[str, str], str]]:
    """What a workflow runner reads: every line a command, its properties, and its message."""
    assert output.endswith("\n")
    commands = []
    for line in output[:-1].split("\n"):
        command = re.fullmatch(r"::(error|warning|notice) ([^:]*)::(.*)", line)
        assert command, line
        properties = dict(pair.split("=", 1) for pair in command[2].split(","))
        decoded = {name: _decoded(value) for name, value in properties.items()}
        commands.append((command[1], decoded, _decoded(command[3])))
    return commands


def _decoded(text: str) -> str:
    for mark, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(mark, character)
    return text


def suite_of(output: str) -> ET.Element:
    root = ET.fromstring(output)
    assert root.tag == "testsuites"
    (suite,) = root
    cases = suite.findall("testcase")
    assert [child.tag for child in suite] == ["properties", *["testcase"] * len(cases), "system-out"]
    for name, count in (
        ("tests", len(cases)),
        ("failures", len(suite.findall("testcase/failure"))),
        ("errors", len(suite.findall("testcase/error"))),
    ):
        assert root.get(name) == suite.get(name) == str(count)
    assert all(case.get("name") and case.get("classname") for case in cases)
    return suite


class TestJUnit:
    def test_every_row_is_a_test_case_and_rows_that_need_a_decision_fail(self) -> None:
        rows = [row(severity=level, code=f"code_{level}", name=f"tool-{level}") for level in ROW_SEVERITIES]
        suite = suite_of(render(report(*rows, exit_code=1), "junit"))
        outcomes = {case.get("name"): [child.tag for child in case] for case in suite.findall("testcase")}
        assert outcomes == {
            "tool tool-critical /description": ["failure"],
            "tool tool-review /description": ["failure"],
            "tool tool-warning /description": ["system-out"],
            "tool tool-info /description": ["system-out"],
        }

    def test_warnings_fail_where_nothing_worse_explains_the_exit_code(self) -> None:
        rows = (row(severity="warning"), row(severity="info"))
        assert suite_of(render(report(*rows, exit_code=1), "junit")).get("failures") == "1"
        assert suite_of(render(report(*rows, exit_code=0), "junit")).get("failures") == "0"

    def test_rows_of_a_command_that_is_clean_do_not_fail(self) -> None:
        suite = suite_of(render(report(row(severity="critical")), "junit"))
        assert (suite.get("tests"), suite.get("failures")) == ("1", "0")

    def test_without_rows_the_command_itself_is_the_case(self) -> None:
        clean = suite_of(render(report(), "junit"))
        refused = suite_of(render(report(exit_code=1), "junit"))
        unchecked = suite_of(render(report(exit_code=3), "junit"))
        for suite, counts in ((clean, ("0", "0")), (refused, ("1", "0")), (unchecked, ("0", "1"))):
            assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("1", *counts)

    def test_texts_and_location_are_included(self) -> None:
        changed = row(before="old", after="new", file="mcp-lock.json", line=7, column=3)
        (case,) = suite_of(render(report(changed, exit_code=1), "junit")).findall("testcase")
        assert case.get("name") == "tool search /description in mcp-lock.json"
        (failure,) = case
        assert "at mcp-lock.json:7" in str(failure.text)
        assert failure.get("type") == "text_changed"
        assert "before: old\nafter: new" in str(failure.text)

    def test_hostile_text_stays_text(self) -> None:
        """Attack: markup, the end of a CDATA section and characters that no XML may hold, in all texts."""
        suite = suite_of(render(hostile_report(HOSTILE), "junit"))
        assert len(suite.findall("testcase")) == len(ROW_SEVERITIES) + 1
        assert ']]></failure></testcase><x a="\'&"><U+000D>' in str(suite.findall("testcase")[0].get("name"))


class TestGitHub:
    def test_every_row_is_a_command_with_its_location_after_the_summary(self) -> None:
        rows = [row(severity=level) for level in ROW_SEVERITIES]
        placed = row(severity="critical", file="conf/a, b:c%.json", line=7, column=3, excerpt="50% off")
        title = "tool search /description"
        output = workflow_commands(render(report(*rows, placed, exit_code=1, notes=("a note",)), "github"))
        message = "Text that the model or the user reads has changed. (text_changed)"
        assert output == [
            ("error", {"title": "pinwarden diff"}, "no change"),
            ("error", {"title": f"critical: {title}"}, message),
            ("warning", {"title": f"review: {title}"}, message),
            ("warning", {"title": f"warning: {title}"}, message),
            ("notice", {"title": f"info: {title}"}, message),
            (
                "error",
                {"file": "conf/a, b:c%.json", "line": "7", "col": "3", "title": f"critical: {title}"},
                f"{message}\ntext: 50% off",
            ),
            ("notice", {"title": "pinwarden diff"}, "a note"),
        ]

    def test_without_rows_the_summary_is_printed(self) -> None:
        assert workflow_commands(render(report(), "github")) == [("notice", {"title": "pinwarden diff"}, "no change")]

    def test_hostile_text_cannot_start_a_command(self) -> None:
        """Attack: line breaks, encoded ones and workflow commands in all texts."""
        output = workflow_commands(render(hostile_report(HOSTILE), "github"))
        assert len(output) == len(ROW_SEVERITIES) + 3
        assert all(set(properties) <= {"file", "line", "col", "title"} for _, properties, _ in output)
        assert "<U+000A>%0A::warning::y 100%" in output[0][2]


class TestSarif:
    def test_a_location_becomes_a_region_besides_the_logical_location(self) -> None:
        placed = row(file="conf/a b#%é.json", line=7, column=3)
        (result,) = json.loads(render(report(placed), "sarif"))["runs"][0]["results"]
        (location,) = result["locations"]
        assert location["physicalLocation"] == {
            "artifactLocation": {"uri": "conf/a%20b%23%25%C3%A9.json"},
            "region": {"startLine": 7, "startColumn": 3},
        }
        assert location["logicalLocations"][0]["fullyQualifiedName"] == "tool/search/description"

    @pytest.mark.parametrize(
        ("file", "uri"),
        [
            ("mcp-lock.json", "mcp-lock.json"),
            ("a:b.json", "a%3Ab.json"),
            ("/home/ada/.mcp.json", "file:///home/ada/.mcp.json"),
            ("C:/Users/Ada L/.mcp.json", "file:///C:/Users/Ada%20L/.mcp.json"),
        ],
    )
    def test_a_file_becomes_a_uri(self, file: str, uri: str) -> None:
        (result,) = json.loads(render(report(row(file=file)), "sarif"))["runs"][0]["results"]
        location = {"artifactLocation": {"uri": uri}, "region": {"startLine": 1}}
        assert result["locations"][0]["physicalLocation"] == location

    def test_a_row_without_a_file_has_no_physical_location(self) -> None:
        (result,) = json.loads(render(report(row()), "sarif"))["runs"][0]["results"]
        assert set(result["locations"][0]) == {"logicalLocations"}

    def test_a_finding_keeps_its_fingerprint_when_it_moves(self) -> None:
        prints = {
            json.loads(render(report(row(file="f", line=line)), "sarif"))["runs"][0]["results"][0][
                "partialFingerprints"
            ]["pinwardenRow/v1"]
            for line in (1, 2)
        }
        assert len(prints) == 1

    @pytest.mark.parametrize(
        "shown",
        [report(), report(row()), report(row(file="a b", line=1, column=1)), hostile_report(HOSTILE)],
        ids=["no row", "no place", "a place", "hostile"],
    )
    def test_the_log_is_valid_under_the_official_schema(self, shown: Report) -> None:
        assert sarif_problems(json.loads(render(shown, "sarif"))) == []

    def test_the_schema_would_notice_what_is_wrong(self) -> None:
        log = json.loads(render(report(row(file="a", line=1)), "sarif"))
        log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] = 0
        del log["runs"][0]["tool"]
        assert len(sarif_problems(log)) == 2


@given(st.text(st.characters(), max_size=80))
def test_text_cannot_break_out_of_any_format(text: str) -> None:
    hostile = hostile_report(text)
    assert len(suite_of(render(hostile, "junit")).findall("testcase")) == len(ROW_SEVERITIES) + 1
    assert len(workflow_commands(render(hostile, "github"))) == len(ROW_SEVERITIES) + 3
    assert len(json.loads(render(hostile, "sarif"))["runs"][0]["results"]) == len(ROW_SEVERITIES) + 1


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_invisible_is_printed_in_any_format(form: str) -> None:
    """Attack: terminal escapes and characters that reorder text, in all texts."""
    ours = {"\n", "\ufe0f"}  # the second belongs to a sign in Markdown
    assert set(INVISIBLE.findall(render(hostile_report(HOSTILE), form))) <= ours


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_a_complete_document_without_rows(form: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"tools": []}')
    outcome = pinwarden("diff", "a.json", "a.json", "--format", form, cwd=tmp_path)
    assert outcome.code == 0
    assert outcome.err == ""
    if form == "junit":
        assert suite_of(outcome.out).get("failures") == "0"
    elif form == "github":
        assert workflow_commands(outcome.out)[0] == ("notice", {"title": "pinwarden diff"}, "no change")
    elif form == "json":
        document = json.loads(outcome.out)
        assert (document["changes"], document["blocked_by_default"]) == ([], False)
    elif form == "sarif":
        (run,) = json.loads(outcome.out)["runs"]
        assert (run["results"], "invocations" in run) == ([], False)  # only a run that failed says how it ran
    else:
        assert "no change" in outcome.out


def hostile_error(text: str, code: str = "LOCK_INVALID") -> PinwardenError:
    return PinwardenError(code, text, hint=text)


class TestErrors:
    """A command that fails answers in the format that was asked for: a reader of it must not find an empty file."""

    LOCK = "no lock\nhere: 100%, `x` <b>|"

    def rendered(self, form: str, code: str = "LOCK_MISSING", message: str = LOCK) -> str:
        return render_error(PinwardenError(code, message, hint="Make one."), "ci", form)

    def test_sarif_has_a_run_that_did_not_succeed_and_no_result(self) -> None:
        log = json.loads(self.rendered("sarif"))
        assert sarif_problems(log) == []
        (run,) = log["runs"]
        (invocation,) = run["invocations"]
        (notification,) = invocation["toolExecutionNotifications"]
        assert (run["results"], invocation["executionSuccessful"], invocation["exitCode"]) == ([], False, 3)
        assert (notification["descriptor"], notification["level"]) == ({"id": "LOCK_MISSING", "index": 0}, "error")
        assert [notification["id"] for notification in run["tool"]["driver"]["notifications"]] == ["LOCK_MISSING"]
        output = "pinwarden ci: no lock<U+000A>here: 100%, `x` <b>| [LOCK_MISSING]; hint: Make one."
        assert notification["message"]["text"] == output

    @pytest.mark.parametrize(
        ("code", "tag"), [("LOCK_MISSING", "error"), ("USAGE", "error"), ("POLICY_REFUSED", "failure")]
    )
    def test_junit_has_one_case_that_the_error_ended(self, code: str, tag: str) -> None:
        suite = suite_of(self.rendered("junit", code))
        (case,) = suite.findall("testcase")
        assert (case.get("classname"), case.get("name")) == ("pinwarden.ci", code)
        (ended,) = case
        assert (ended.tag, ended.get("type")) == (tag, code)
        assert ended.get("message") == "no lock<U+000A>here: 100%, `x` <b>|"
        assert str(ended.text).endswith("\nhint: Make one.")

    def test_github_has_one_annotation_with_the_code_as_its_title(self) -> None:
        output = self.rendered("github")
        assert output.startswith("::error title=LOCK_MISSING::pinwarden ci: no lock<U+000A>here: 100%25,")
        message = "pinwarden ci: no lock<U+000A>here: 100%, `x` <b>|\nhint: Make one."
        assert workflow_commands(output) == [("error", {"title": "LOCK_MISSING"}, message)]

    def test_markdown_has_a_section(self) -> None:
        assert self.rendered("markdown") == (
            "### Pinwarden ci did not finish\n\n"
            "**no lock&lt;U+000A&gt;here&#58; 100%, &#96;x&#96; &lt;b&gt;&#124;** (`LOCK_MISSING`)\n\n"
            "> Make one.\n"
        )

    def test_json_has_the_error_under_its_own_member(self) -> None:
        error = {"code": "LOCK_MISSING", "message": self.LOCK, "hint": "Make one.", "data": {}}
        assert json.loads(self.rendered("json")) == {"error": error}

    def test_the_text_format_prints_errors_only_to_stderr(self) -> None:
        assert self.rendered("text") == ""

    @given(st.text(st.characters(), max_size=80))
    def test_text_cannot_break_out_of_any_format(self, text: str) -> None:
        """Attack: an error quotes a file or a server, which chose the words."""
        hostile = hostile_error(text)
        assert len(suite_of(render_error(hostile, "ci", "junit")).findall("testcase/error")) == 1
        assert len(workflow_commands(render_error(hostile, "ci", "github"))) == 1
        assert len(json.loads(render_error(hostile, "ci", "sarif"))["runs"][0]["invocations"]) == 1
        assert len(render_error(hostile, "ci", "markdown").splitlines()) == 5
        json.loads(render_error(hostile, "ci", "json"))

    @pytest.mark.parametrize("form", FORMATS)
    def test_nothing_invisible_is_printed(self, form: str) -> None:
        """Attack: terminal escapes and characters that reorder text."""
        assert set(INVISIBLE.findall(render_error(hostile_error(HOSTILE), "ci", form))) <= {"\n"}

    @pytest.mark.parametrize("form", [form for form in FORMATS if form != "text"])
    @pytest.mark.parametrize(
        ("arguments", "code", "error"),
        [
            (("lock", "digest"), 3, "LOCK_MISSING"),
            (("lock", "digest", "--file", "broken.json"), 3, "JSON_PARSE_ERROR"),
            (("inspect", "--", "true"), 2, "CONSENT_REQUIRED"),
            (("ci", "--nonsense"), 2, "USAGE"),
            (("nonsense",), 2, "USAGE"),
        ],
        ids=["no lock", "damaged lock", "no consent", "unknown option", "unknown command"],
    )
    def test_a_failing_command_prints_a_complete_document_and_a_message(
        self, tmp_path: Path, form: str, arguments: tuple[str, ...], code: int, error: str
    ) -> None:
        (tmp_path / "broken.json").write_text("{")
        words = list(arguments)
        place = words.index("--") if "--" in words else len(words)
        words[place:place] = ["--format", form]
        outcome = pinwarden(*words, cwd=tmp_path, env={"HOME": str(tmp_path)})
        assert outcome.code == code
        assert outcome.err.startswith("error: ")
        assert f"[{error}]\nhint: " in outcome.err
        assert self.code_in(outcome.out, form) == error

    def code_in(self, document: str, form: str) -> str:
        if form == "json":
            return str(json.loads(document)["error"]["code"])
        if form == "sarif":
            assert sarif_problems(json.loads(document)) == []
            (invocation,) = json.loads(document)["runs"][0]["invocations"]
            return str(invocation["toolExecutionNotifications"][0]["descriptor"]["id"])
        if form == "junit":
            return str(suite_of(document).findall("testcase/error")[0].get("type"))
        if form == "github":
            return workflow_commands(document)[0][1]["title"]
        heading, code = document.splitlines()[0], document.splitlines()[2].rpartition(" ")[2]
        assert heading.startswith("### Pinwarden")
        return code.strip("(`)")

    @pytest.mark.parametrize("option", ["--form=sarif", "--env=production", "--allow-e"])
    def test_a_shortened_option_is_a_usage_error(self, tmp_path: Path, option: str) -> None:
        """What a shortened word means could change with the next release; consent above all is given in full."""
        outcome = pinwarden("ci", "--format=json", option, cwd=tmp_path, env={"HOME": str(tmp_path)})
        assert (outcome.code, self.code_in(outcome.out, "json")) == (2, "USAGE")

    def test_a_format_option_after_the_separator_belongs_to_the_server(self, tmp_path: Path) -> None:
        outcome = pinwarden("inspect", "--", "server", "--format", "json", cwd=tmp_path)
        assert (outcome.code, outcome.out) == (2, "")
