"""The fast check for secrets in command lines never misses one, and command names do not depend on secrets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinwarden.gateway.gated_server import name_command
from pinwarden.system.masking import TOKEN, mask_words
from pinwarden.system.target import surely_has_no_secret

PARTS = st.sampled_from(
    ["--token", "--api-key", "-p", "-m", "--", "a/b.py", "python3", "-H", "X: y", "k=v", "TOKEN=v", "https://u:p@h/"]
)
WORDS = st.one_of(PARTS, st.text(max_size=40), st.from_regex(TOKEN), st.from_regex(r"[A-Za-z0-9_+=-]{20,30}"))


@settings(max_examples=300, deadline=None)
@given(st.lists(WORDS, max_size=4))
def test_a_command_line_classified_as_free_of_secrets_has_nothing_to_mask(words: list[str]) -> None:
    assert not surely_has_no_secret(words) or mask_words(words) == words


@settings(max_examples=300, deadline=None)
@given(st.from_regex(TOKEN))
def test_a_key_of_a_known_format_is_never_classified_as_free_of_secrets(key: str) -> None:
    assert not surely_has_no_secret(["run", key])


def test_usual_command_lines_are_classified_as_free_of_secrets() -> None:
    assert surely_has_no_secret(["/usr/bin/python3.11", "examples/notes_server.py"])
    assert surely_has_no_secret(["npx", "-y", "@acme/notes@1.0.0", "."])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["serve", "--token", "hunter2"], ["serve", "--token", "swordfish"]),
        (["serve", "--api-key=abc"], ["serve", "--api-key=def"]),
        (["serve", "ghp_abcdef0123"], ["serve", "ghp_fedcba3210"]),
        (["env", "DB_PASSWORD=a", "serve"], ["env", "DB_PASSWORD=b", "serve"]),
        (["serve", "https://me:one@db.example/x"], ["serve", "https://me:two@db.example/x"]),
        (["serve", "-H", "Authorization: Bearer a"], ["serve", "-H", "Authorization: Bearer b"]),
    ],
)
def test_the_name_of_a_command_does_not_depend_on_its_secrets(one: list[str], other: list[str]) -> None:
    assert name_command(tuple(one), "/srv") == name_command(tuple(other), "/srv")


def test_the_name_of_a_command_depends_on_everything_else() -> None:
    lines = [["serve", "--token", "a"], ["serve", "--token", "a", "b"], ["serve", "b"], ["serve2", "b"]]
    assert len({name_command(tuple(line), "/srv") for line in lines}) == len(lines)
    assert name_command(("serve", "b"), "/srv") != name_command(("serve", "b"), "/home")
