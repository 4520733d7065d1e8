"""What is launched, and by which command."""

from __future__ import annotations

import pytest

from pinwarden import PinwardenError
from pinwarden.lock.launch_choice import (
    build_modern_command,
    build_toolpin_command,
    choose_target,
    require_target,
    target_to_json,
)
from pinwarden.system.environment_variables import to_variable_name
from tests.support.lock_entries import HEX, entry, package, remote

NPM = package()
OCI = package(registryType="oci", identifier="r.example/a:1")
BUNDLE = package(registryType="mcpb", identifier="https://d.example/a.mcpb", fileSha256=HEX)
PYPI = package(registryType="pypi")


@pytest.mark.parametrize(
    ("packages", "remotes", "chosen"),
    [
        ([NPM], [remote(type="sse"), remote(url="https://b.example")], "https://b.example"),
        ([NPM, OCI], [remote(type="sse", url="https://s.example")], "https://s.example"),
        ([NPM, BUNDLE, OCI], [], OCI["identifier"]),
        ([NPM, BUNDLE], [], BUNDLE["identifier"]),
        ([PYPI, NPM], [], "p"),
    ],
)
def test_the_default_target_follows_toolpins_order(packages: list, remotes: list, chosen: str) -> None:  # type: ignore[type-arg]
    target = require_target(entry(*packages, remotes=remotes))
    assert chosen in target_to_json(target).values()


def test_a_named_kind_overrides_the_default() -> None:
    about = entry(NPM, PYPI, remotes=[remote()])
    chosen = choose_target(about, "pypi")
    assert chosen is about.packages[1]
    assert choose_target(about, "remote") is about.remotes[0]


def test_a_kind_that_is_not_offered_is_refused_with_the_offered_ones() -> None:
    with pytest.raises(PinwardenError) as caught:
        choose_target(entry(NPM), "oci")
    assert caught.value.code == "NO_INSTALL_TARGET"
    assert caught.value.data["offered"] == ["npm"]


def test_an_unknown_kind_is_a_usage_error() -> None:
    with pytest.raises(PinwardenError) as caught:
        choose_target(entry(NPM), "deb")
    assert caught.value.code == "USAGE"


def test_an_entry_without_packages_and_remotes_has_no_target() -> None:
    assert choose_target(entry()) is None
    with pytest.raises(PinwardenError) as caught:
        require_target(entry())
    assert caught.value.code == "NO_INSTALL_TARGET"


@pytest.mark.parametrize(
    ("described", "command"),
    [
        (package(packageArguments=["--a"]), "npx -y p@1.2.3 --a"),
        (package(runtimeHint="bun", packageArguments=["--a"]), "bunx p@1.2.3 --a"),
        (package(version=None), "npx -y p"),
        (package(registryType="pypi", packageArguments=["--a"]), "uvx p==1.2.3"),
        (package(registryType="nuget", packageArguments=["--a"]), "dnx p@1.2.3"),
        (package(registryType="cargo", packageArguments=["--a"]), "p"),
        (
            package(
                registryType="oci",
                identifier="r/a:1",
                environmentVariables=[{"name": "A"}, {"name": "B"}, {"name": "A"}],
            ),
            "docker run --rm -i -e A -e B r/a:1",
        ),
        (package(registryType="mcpb", identifier="https://d/a"), "mcpb run https://d/a"),
        (package(registryType="other", packageArguments=["--a"]), "p --a"),
        (package(command="python3", args=["-m", "s"], packageArguments=["--a"]), "python3 -m s"),
        (package(packageArguments=["--a", {"type": "positional", "value": "b"}]), "npx -y p@1.2.3 --a"),
    ],
)
def test_toolpins_commands_are_reproduced_with_what_they_drop(described: dict, command: str) -> None:  # type: ignore[type-arg]
    made = build_toolpin_command(entry(described).packages[0])
    assert " ".join([made.program, *made.arguments]) == command


NAMED = {"type": "named", "name": "--root", "value": "{dir}/x", "variables": {"dir": {"default": "/d"}}}


@pytest.mark.parametrize(
    ("described", "command"),
    [
        (package(packageArguments=[NAMED]), "npx -y p@1.2.3 --root /d/x"),
        (package(packageArguments=[{"type": "named", "name": "--flag"}]), "npx -y p@1.2.3 --flag"),
        (
            package(packageArguments=[{"type": "positional", "valueHint": "dir", "isRequired": True}]),
            "npx -y p@1.2.3 <dir>",
        ),
        (package(packageArguments=[{"type": "positional", "valueHint": "dir"}]), "npx -y p@1.2.3"),
        (package(packageArguments=[{"type": "positional", "default": 8080}]), "npx -y p@1.2.3 8080"),
        (package(runtimeArguments=["-y", "--silent"]), "npx -y --silent p@1.2.3"),
        (package(registryType="pypi", packageArguments=["serve"]), "uvx p==1.2.3 serve"),
        (package(registryType="nuget", packageArguments=["serve"]), "dnx p@1.2.3 --yes -- serve"),
        (package(registryType="cargo", packageArguments=["serve"]), "p serve"),
        (
            package(
                registryType="oci",
                identifier="r:5000/a",
                runtimeArguments=["--network=none"],
                packageArguments=["serve"],
            ),
            "docker run --rm -i --network=none r:5000/a:1.2.3 serve",
        ),
    ],
)
def test_modern_commands_support_all_of_server_json_and_explain_differences(described: dict, command: str) -> None:  # type: ignore[type-arg]
    about = entry(described).packages[0]
    made = build_modern_command(about, lambda name: f"<{name}>")
    assert " ".join([made.program, *made.arguments]) == command
    old = build_toolpin_command(about)
    if (old.program, old.arguments) != (made.program, made.arguments):
        assert made.differences
        assert all(sentence.endswith(".") for sentence in made.differences)


def template(value: str, **variables: object) -> dict[str, object]:
    return {"type": "positional", "value": value, "variables": variables}


MOUNT = {
    "type": "named",
    "name": "--mount",
    "value": "type=bind,src={host-dir},dst={inside}",
    "isRequired": True,
    "variables": {"host-dir": {"format": "filepath", "isRequired": True}, "inside": {"value": "/notes"}},
}


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        (MOUNT, ["--mount", "type=bind,src=<host-dir>,dst=/notes"]),
        ({"type": "named", "name": "--level", "choices": ["a", "b"], "default": "a"}, ["--level", "a"]),
        ({"type": "named", "name": "--level", "valueHint": "level", "choices": ["a", "b"]}, []),
        ({"type": "named", "name": "--level", "valueHint": "level", "isRequired": True}, ["--level", "<level>"]),
        ({"type": "named", "name": "--on", "format": "boolean", "default": True}, ["--on", "true"]),
        ({"type": "named", "name": "--quiet", "isRequired": False}, []),
        ({"type": "positional", "value": "serve"}, ["serve"]),
        (template("{a}{b}", a={"default": "{b}"}, b={"default": "x"}), ["{b}x"]),
        (template("$(id); rm -rf {dir}", dir={"default": "/ x"}), ["$(id); rm -rf / x"]),
        ({"type": "positional", "valueHint": "key", "isSecret": True, "isRequired": True}, ["<key>"]),
    ],
)
@pytest.mark.parametrize("member", ["packageArguments", "runtimeArguments"])
def test_an_argument_becomes_the_expected_words(argument: dict[str, object], words: list[str], member: str) -> None:
    about = entry(package(registryType="pypi", **{member: [argument]})).packages[0]
    made = list(build_modern_command(about, lambda name: f"<{name}>").arguments)
    assert made == (["p==1.2.3", *words] if member == "packageArguments" else [*words, "p==1.2.3"])


def test_a_package_that_serves_http_is_noted_as_a_difference() -> None:
    transport = {"type": "streamable-http", "url": "http://127.0.0.1:{port}/mcp"}
    made = build_modern_command(entry(package(transport=transport)).packages[0], str.upper)
    [report] = [sentence for sentence in made.differences if "streamable-http" in sentence]
    assert "http://127.0.0.1:{port}/mcp" in report
    assert not any("serves" in row for row in build_modern_command(entry(package()).packages[0], str.upper).differences)


def test_an_undeclared_variable_is_literal() -> None:
    about = entry(package(packageArguments=[{"type": "positional", "value": "{json}"}])).packages[0]
    assert build_modern_command(about, str.upper).arguments[-1] == "{json}"


@pytest.mark.parametrize(
    ("name", "variable"),
    [("TOKEN", "TOKEN"), ("X-Api-Key", "X_API_KEY"), ("--log.level", "LOG_LEVEL"), ("2fa", "_2FA"), ("---", "VALUE")],
)
def test_names_become_valid_environment_variables(name: str, variable: str) -> None:
    assert to_variable_name(name) == variable
