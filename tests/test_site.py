"""The site: it is built without a warning, every link in it leads somewhere, and it fetches nothing."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest

import llm_do

ROOT = Path(__file__).parent.parent
# What a browser loads by itself, unlike what somebody clicks on.
LOADED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href"}


class Page(HTMLParser):
    """The links, the anchors and the resources of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        if "id" in values:
            self.anchors.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in LOADED and LOADED[tag] in values and values.get("rel") not in ("canonical", "prev", "next"):
            self.resources.append(values[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it. What `--strict` calls a warning ends the build."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}


def targets(path: Path, links: list[str]) -> Iterator[tuple[Path, str]]:
    """The files, and the anchors in them, that links of a page within the site lead to."""
    for link in links:
        parts = urlsplit(link)
        if not parts.scheme:
            yield (path.parent / unquote(parts.path)).resolve() if parts.path else path, unquote(parts.fragment)


def test_every_link_within_the_site_leads_somewhere(pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        for target, anchor in targets(path, page.links):
            file = target / "index.html" if target.is_dir() else target
            if not file.exists() or (anchor and file in pages and anchor not in pages[file].anchors):
                broken.append(f"{path.name}: {target}#{anchor}")
    assert broken == []


def test_nothing_is_fetched_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        assert [link for link in page.resources if urlsplit(link).netloc] == []
        for target, _ in targets(path, page.resources):
            assert target.exists(), f"{path.name}: {target}"
    for style in site.rglob("*.css"):
        assert re.findall(r"url\([\"']?https?:|@import", style.read_text()) == [], style


def test_every_public_name_can_be_looked_up(site: Path, pages: dict[Path, Page]) -> None:
    anchors = set[str]().union(*(page.anchors for path, page in pages.items() if path.parent == site / "reference"))
    assert [name for name in llm_do.__all__ if f"llm_do.{name}" not in anchors] == []


def test_the_search_knows_pages_headings_and_names(site: Path) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    locations = {entry["location"] for entry in entries}
    assert {"concept.html", "concept.html#authority", "reference/calling.html#llm_do.Runtime.why"} <= locations
    assert (site / "search" / "search_index.js").exists()  # for a site that is read from the disk


@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "img").glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_says_in_words_what_it_shows(picture: Path) -> None:
    root = ElementTree.parse(picture).getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert root.findtext(f"{space}title") and root.findtext(f"{space}desc")
    assert not [element for element in root.iter() if "href" in "".join(element.attrib)]
