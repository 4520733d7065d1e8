"""The pages of a registry as text: what they say, in which states, live and exported."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import HTTPRedirectHandler, Request, build_opener
from xml.etree import ElementTree as ET

import pytest

from pinwarden.registry.export import export_registry
from pinwarden.registry.pages.page_request import PageRequest
from pinwarden.registry.pages.readme import render_readme
from pinwarden.registry.pages.site import find_page
from pinwarden.registry.registry import Registry
from pinwarden.registry.store import publications
from tests.registry.pages.conftest import serving
from tests.registry.pages.hostile import HONEST_README, HOSTILE_README, HOSTILE_TEXT, SCRIPT
from tests.registry.world import World, bundle
from tests.support.needs import needs

needs_bwrap = needs("bwrap", install="apt-get install bubblewrap")
ATOM = "{http://www.w3.org/2005/Atom}"


class NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def get(url: str) -> tuple[int, dict[str, str], str]:
    try:
        with build_opener(NoRedirect).open(Request(url, headers={"accept": "text/html"}), timeout=60) as response:
            return (
                response.status,
                {name.lower(): value for name, value in response.headers.items()},
                response.read().decode(),
            )
    except HTTPError as err:
        with err:
            return err.code, {name.lower(): value for name, value in err.headers.items()}, err.read().decode()


def read(registry: Registry, path: str, **query: str) -> str:
    """The text of a page, without tags."""
    page = find_page(registry, PageRequest(path=path, query=query, base_url="https://r.example/"))
    assert page is not None
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", page.body.decode())))


@needs_bwrap
def test_pages_allow_no_script_and_nothing_from_elsewhere(site: str) -> None:
    for path, expected in (
        ("", 200),
        ("log/", 200),
        ("bundles/none.such/", 404),
        ("?page=0", 422),
        ("assets/style.css", 200),
    ):
        status, headers, _ = get(site + path)
        assert status == expected
        policy = headers["content-security-policy"]
        assert policy.startswith(
            "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'"
        )
        assert "require-trusted-types-for 'script'" in policy
        assert "unsafe" not in policy
        assert "script-src" not in policy
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")


@needs_bwrap
def test_an_address_without_its_last_slash_and_the_form_lead_to_the_page(site: str) -> None:
    assert get(f"{site}bundles/acme.notes")[1]["location"] == "acme.notes/"
    assert get(f"{site}publishers/acme")[1]["location"] == "acme/"
    form = get(f"{site}bundles/acme.notes/compare/?before=1.0.0&after=1.1.0")
    assert (form[0], form[1]["location"]) == (303, "1.0.0/1.1.0/")
    assert get(f"{site}bundles/acme.notes/compare/?before=1.0.0&after=//evil.example")[0] == 422


@needs_bwrap
def test_the_package_page_separates_what_was_computed_from_what_is_claimed(hostile: World) -> None:
    text = read(hostile.registry, "bundles/acme.notes/1.0.0/")
    computed, claimed = text.index("Computed by this registry"), text.index("Claimed by the publisher")
    with hostile.registry.database.transaction() as transaction:
        version = publications.find_version(transaction, "acme.notes", "1.0.0")
    assert version is not None
    assert version.api_surface is not None
    for fact in (version.content_hash, version.root_cid, version.api_surface, version.published_by, "owner of acme"):
        assert computed < text.index(fact) < claimed, fact
    assert text.index("License MIT") > claimed
    assert "integrity by a maintainer" in text
    assert "integrity by a auditor" in text or "integrity by an auditor" in text
    assert "No channel points to this version" in text
    assert "search_notes" in text
    assert "Search before you write." in text
    assert "Nothing is sent anywhere." in text


@needs_bwrap
def test_the_install_command_is_pinned_and_a_yanked_version_has_none(hostile: World) -> None:
    latest = read(hostile.registry, "bundles/acme.notes/")
    assert "pinwarden install acme.notes --floor 1.1.0 --registry https://r.example/" in latest
    yanked = read(hostile.registry, "bundles/acme.notes/1.2.0/")
    assert "An attacker published this. Use 1.1.0." in yanked
    assert "pinwarden install" not in yanked


def test_unknown_is_said_where_the_registry_knows_nothing(world: World) -> None:
    world.publish(bundle())
    world.publish(bundle(version="1.1.0", content=b"other\n"))
    text = read(world.registry, "bundles/acme.notes/")
    assert "Unknown. The registry has no record of this server's tools." in text
    assert "this registry does not start servers" in text
    assert "API surface hash unknown" in text
    assert "offers no tools" not in text
    assert "This bundle has no README." in text
    assert (
        "Attestations Signatures verified by this registry; whether the keys deserve trust is your decision None."
        in text
    )
    with serving(world.registry) as url:
        compared = get(f"{url}bundles/acme.notes/compare/1.0.0/1.1.0/")[2]
    assert "no record of what one of these versions offers" in compared
    assert "Nothing changed" not in compared


def test_empty_pages_say_what_to_do(world: World) -> None:
    assert "No bundle has been published here yet." in read(world.registry, "")
    assert "The log is empty" in read(world.registry, "log/")
    assert "This publisher has not published anything yet." in read(world.registry, "publishers/acme/")
    assert find_page(world.registry, PageRequest(path="publishers/unknown/")) is None
    world.publish(bundle())
    assert "No bundle matches all words of nothing" in read(world.registry, "", q="nothing")
    assert "There is no page 9" in read(world.registry, "", page="9")
    for query in ("77", "acme.unknown", "bafkreiac7fzd2scyumwmoxw2jfzsl4f77htqzvtiqcf4krep7j7mkpxz7q"):
        assert f"No entry was found for {query}" in read(world.registry, "log/", q=query)


def test_the_log_page_finds_entries_by_index_name_and_cid(world: World) -> None:
    made = bundle()
    published = world.publish(made)
    for query, meaning in (
        ("0", "the index of an entry"),
        ("acme.notes", "the name of a bundle"),
        (made.root_cid, "the CID of the content of a bundle"),
        (made.descriptor_cid, "the CID of the descriptor of a bundle"),
        (made.archive_cid, "the CID of the archive of a bundle"),
    ):
        text = read(world.registry, "log/", q=query)
        assert f"{query} is {meaning}" in text
        assert "acme.notes 1.0.0" in text
    entry = read(world.registry, "log/entries/0/")
    assert published.root_cid in entry
    assert "c2sp.org/tlog-proof" in entry
    assert find_page(world.registry, PageRequest(path="log/entries/1/")) is None


def test_a_failing_database_is_an_error_page_without_details(world: World) -> None:
    world.publish(bundle())
    with world.registry.database.transaction() as transaction:
        transaction.run("DROP TABLE packages")
    with serving(world.registry) as url:
        status, headers, body = get(url)
    assert (status, headers["cache-control"]) == (500, "no-store")
    assert "The registry has a problem" in body
    assert "DATABASE_CORRUPT" in body
    assert "no such table" not in body


@needs_bwrap
def test_feeds_have_new_versions_and_yanks(hostile: World, site: str) -> None:
    status, headers, body = get(f"{site}bundles/acme.notes/feed.atom")
    assert (status, headers["content-type"].partition(";")[0]) == (200, "application/atom+xml")
    titles = [str(entry.findtext(f"{ATOM}title")) for entry in ET.fromstring(body).iter(f"{ATOM}entry")]
    assert titles == [
        "acme.notes 1.2.0 yanked",
        "acme.notes 1.2.0 published",
        "acme.notes 1.1.0 published",
        "acme.notes 1.0.0 published",
    ]
    evil = ET.fromstring(get(f"{site}publishers/evil/feed.atom")[2])
    assert len(list(evil.iter(f"{ATOM}entry"))) == 3
    everything = ET.fromstring(get(f"{site}feed.atom")[2])
    ids = [entry.findtext(f"{ATOM}id") for entry in everything.iter(f"{ATOM}entry")]
    assert len(ids) == len(set(ids)) == 9


@needs_bwrap
def test_the_export_has_the_same_pages_with_links_that_lead_to_files(hostile: World, tmp_path: Path) -> None:
    export_registry(hostile.registry, tmp_path)
    pages = sorted(tmp_path.rglob("*.html"))
    assert {str(page.parent.relative_to(tmp_path)) for page in pages} >= {
        ".",
        "log",
        "bundles/acme.notes",
        "bundles/acme.notes/1.2.0",
        "bundles/acme.notes/compare/1.1.0/1.2.0",
        "publishers/evil",
        "words",
        "words/se",
    }
    words = (tmp_path / "words/se/index.html").read_text()
    assert re.findall(r"<dt><bdi>(\w+)</bdi></dt>\s*<dd><a href=\"([^\"]+)\"", words)[0] == (
        "search",
        "../../bundles/acme.notes/index.html",
    )
    broken = set()
    for page in pages:
        html = page.read_text("utf-8")
        assert "Content-Security-Policy" in html
        for link in re.findall(r'(?:href|action)="([^"#?]*)', html):
            target = (page.parent / link).resolve()
            if link and not target.is_file():
                broken.add((str(page.relative_to(tmp_path)), link))
    assert broken == set()


@needs_bwrap
@pytest.mark.parametrize(
    ("where", "path"),
    [
        ("a README", "bundles/evil.bundle/"),
        ("the name and the texts of a tool", "bundles/evil.bundle/2.0.0/"),
        ("the reason of a yank", "bundles/evil.bundle/1.0.0/"),
        ("a comparison of two versions", "bundles/evil.bundle/compare/1.0.0/2.0.0/"),
        ("the description in a list", "publishers/evil/"),
        ("the search", "?q=" + quote(HOSTILE_TEXT[:190])),
        ("the lookup in the log", "log/?q=" + quote(SCRIPT)),
        ("a feed", "bundles/evil.bundle/feed.atom"),
    ],
)
def test_attack_cross_site_scripting_in(where: str, path: str, site: str) -> None:
    """Attack: markup that runs a script, in every text of others."""
    body = get(f"{site}{path}")[2]
    found = Markup()
    found.feed(body)
    assert "javascript:" in found.text or "pwned" in found.text, where
    assert found.tags & {"script", "img", "iframe", "style", "object", "embed", "base"} == set()
    for name, value in found.attributes:
        assert not name.startswith(("on", "hx-", "style", "src", "srcdoc")), (where, name)
        assert not re.match(r"\s*(?:javascript|data|vbscript):", value), (where, name, value)


class Markup(HTMLParser):
    """The tags, attributes and text of a page, as a lenient reader finds them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_attack_a_readme_keeps_no_link_image_script_or_attribute() -> None:
    html = str(render_readme("README.md", HOSTILE_README.encode()).html)
    allowed = re.compile(r'</?[a-z0-9]+>|<span class="(?:hidden-character|visually-hidden)">|<br>|<hr>')
    assert [tag for tag in re.findall(r"<[^>]*>", html) if not allowed.fullmatch(tag)] == []
    assert not re.search(r"<(?:a|img|script|iframe|style|svg)\b", html)
    assert "U+202E" in html
    assert "https://evil.example/?a=1" in html


@pytest.mark.parametrize(
    "text", ["[" * 60_000, "|" + "a|" * 300 + "\n|" + "-|" * 300 + "\n" + "|\n" * 300, "a\n" * 30_000]
)
def test_attack_a_readme_that_takes_a_parser_long_is_shown_as_it_is(text: str) -> None:
    rendered = render_readme("README.md", text.encode())
    assert not rendered.is_markdown
    assert rendered.html.startswith('<pre class="others">')


def test_an_honest_readme_is_rendered_by_its_structure() -> None:
    html = str(render_readme("README.md", HONEST_README.encode()).html)
    assert "<h3>Notes</h3>" in html
    assert "<td><code>search_notes</code></td>" in html
    assert "the documentation (https://acme.example/docs)" in html
    assert render_readme("README.txt", b"*plain*").html == '<pre class="others">*plain*</pre>'
