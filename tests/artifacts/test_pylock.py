"""``pylock.toml``: packages by hash, and nothing that has no bytes to hold a hash against."""

from __future__ import annotations

import pytest

from pinwarden.artifacts.pylock import Pylock, PylockDistribution, PylockPackage, parse_pylock
from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError

HEX = "ab" * 32
WHEEL = f'{{ url = "https://f.example/acme_notes-1.0-py3-none-any.whl", hashes = {{ sha256 = "{HEX}" }} }}'


def lock(*packages: str, head: str = 'lock-version = "1.0"\n') -> bytes:
    return (head + "".join(f"\n[[packages]]\n{text}\n" for text in packages)).encode()


def notes(rest: str = f"wheels = [{WHEEL}]", *, version: str = "1.0") -> str:
    return f'name = "acme-notes"\nversion = "{version}"\n{rest}'


def test_a_lock_as_uv_writes_it_is_read() -> None:
    text = notes(
        "marker = \"sys_platform == 'win32'\"\n"
        f'sdist = {{ url = "https://f.example/acme_notes-1.0.tar.gz", size = 9, hashes = {{ sha256 = "{HEX}" }} }}\n'
        f'wheels = [{{ name = "acme_notes-1.0-py3-none-any.whl", url = "https://f.example/acme_notes-1.0-py3-none-any.whl",'
        f' upload-time = 2026-07-23T20:16:12+02:00, hashes = {{ sha256 = "{HEX}", md5 = "0" }} }}]'
    )
    head = 'lock-version = "1.0"\ncreated-by = "uv"\nrequires-python = ">=3.11"\n'
    digest = Digest.parse(f"sha256:{HEX}")
    assert parse_pylock(lock(text, head=head)) == Pylock(
        requires_python=">=3.11",
        packages=(
            PylockPackage(
                name="acme-notes",
                version="1.0",
                marker="sys_platform == 'win32'",
                wheels=(
                    PylockDistribution(
                        name="acme_notes-1.0-py3-none-any.whl",
                        url="https://f.example/acme_notes-1.0-py3-none-any.whl",
                        sha256=digest,
                        uploaded_at="2026-07-23T18:16:12Z",
                    ),
                ),
                sdist=PylockDistribution(
                    name="acme_notes-1.0.tar.gz",
                    url="https://f.example/acme_notes-1.0.tar.gz",
                    sha256=digest,
                    size=9,
                ),
            ),
        ),
    )


def file(
    url: str = "https://f.example/acme_notes-1.0-py3-none-any.whl", more: str = "", hashes: str | None = None
) -> str:
    stated = f'{{ sha256 = "{HEX}" }}' if hashes is None else hashes
    return f'wheels = [{{ url = "{url}", hashes = {stated}{more} }}]'


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"not = [toml", id="not TOML"),
        pytest.param(b"\xff", id="not UTF-8"),
        pytest.param(lock(notes(), head=""), id="no version of the format"),
        pytest.param(lock(notes(), head='lock-version = "2.0"\n'), id="a later format"),
        pytest.param(lock(), id="no packages"),
        pytest.param(lock(notes('vcs = { type = "git", url = "https://git.example/x" }')), id="vcs"),
        pytest.param(lock(notes('directory = { path = "." }')), id="directory"),
        pytest.param(
            lock(notes(f'archive = {{ url = "https://f.example/x.zip", hashes = {{ sha256 = "{HEX}" }} }}')),
            id="archive",
        ),
        pytest.param(lock('name = "acme-notes"\n' + file()), id="no version"),
        pytest.param(lock(notes(version=">=1")), id="a range"),
        pytest.param(lock(notes().replace("acme-notes", "Acme_Notes")), id="a name that is not normal"),
        pytest.param(lock(notes().replace("acme-notes", "other")), id="a file of something else"),
        pytest.param(lock(notes("")), id="no file"),
        pytest.param(lock(notes(file(hashes="{}"))), id="no hash"),
        pytest.param(lock(notes(file(hashes='{ md5 = "00" }'))), id="only a weak hash"),
        pytest.param(lock(notes(file(hashes='{ sha256 = "00" }'))), id="a short hash"),
        pytest.param(lock(notes(file("file:///srv/acme_notes-1.0-py3-none-any.whl"))), id="a local file"),
        pytest.param(lock(notes(file("https://u:p@f.example/acme_notes-1.0-py3-none-any.whl"))), id="a credential"),
        pytest.param(lock(notes(file(more=', path = "x.whl"'))), id="a path"),
        pytest.param(lock(notes(file(more=', name = "acme_notes-1.0-py2-none-any.whl"'))), id="another name"),
        pytest.param(lock(notes(file(more=", size = 99999999999999"))), id="an absurd size"),
        pytest.param(lock(notes(file(more=", size = -1"))), id="a negative size"),
        pytest.param(lock(notes(file(more=', upload-time = "yesterday"'))), id="a time that is text"),
        pytest.param(lock(notes(f"wheels = [{WHEEL}, {WHEEL}]")), id="a file twice"),
        pytest.param(lock(notes(), notes()), id="a package twice"),
        pytest.param(
            lock(notes(), notes(file("https://f.example/acme_notes-2.0-py3-none-any.whl"), version="2.0")),
            id="two versions without markers",
        ),
    ],
)
def test_what_cannot_be_pinned_is_refused(data: bytes) -> None:
    with pytest.raises(PinwardenError) as caught:
        parse_pylock(data)
    assert caught.value.code == "CLOSURE_INVALID"


def test_two_versions_for_different_environments_are_one_lock() -> None:
    one = notes(f"marker = \"sys_platform == 'win32'\"\n{file()}")
    other = notes(
        f"marker = \"sys_platform != 'win32'\"\n{file('https://f.example/acme_notes-2.0-py3-none-any.whl')}",
        version="2.0",
    )
    assert [package.version for package in parse_pylock(lock(one, other)).packages] == ["1.0", "2.0"]
