"""Built pages: what they link to, whether all of it is there, and how many clicks apart."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass
class Link:
    """A reference to something: by which element, from within the text of the page or not."""

    target: str
    element: str
    in_text: bool


@dataclass
class Page(HTMLParser):
    """A page, read."""

    path: Path
    anchors: set[str] = field(default_factory=set)
    links: list[Link] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def __post_init__(self):
        super().__init__()
        self._articles = 0
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self._articles += tag == "article"
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        for name in ("href", "src"):
            if given.get(name):
                element = given.get("rel", tag) if tag == "link" else tag
                self.links.append(Link(given[name], element, self._articles > 0))

    def handle_endtag(self, tag):
        self._articles -= tag == "article"

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join("".join(self.words).split())


class Site:
    """All pages in a folder."""

    def __init__(self, folder):
        self.folder = Path(folder).resolve()

    @cached_property
    def pages(self):
        found = sorted(self.folder.rglob("*.html"))
        own = [path for path in found if path.relative_to(self.folder).parts[0] != "_static"]
        return {path: Page(path) for path in own}

    def target(self, page, link):
        """The file that a link leads to, and the place in it; None for another site."""
        parts = urlsplit(link.target)
        if parts.scheme or parts.netloc:
            return None
        path = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
        return path, unquote(parts.fragment)

    def broken(self):
        """Links to files and places that are not there."""
        found = []
        for page in self.pages.values():
            for link in page.links:
                at = self.target(page, link)
                if at is None:
                    continue
                path, place = at
                page_there = self.pages.get(path)
                lost = place and page_there is not None and place not in page_there.anchors
                if lost or not path.is_file():
                    found.append(f"{page.path.relative_to(self.folder)}: {link.target}")
        return found

    def fetched(self):
        """What a browser would fetch from elsewhere to show the pages."""
        return {
            link.target
            for page in self.pages.values()
            for link in page.links
            if link.element not in ("a", "canonical") and self.target(page, link) is None
            and not link.target.startswith("data:")
        }  # fmt: skip

    def within(self, clicks, start="index.html"):
        """The pages that are so many clicks from the first, by links in the text of pages."""
        reached = {self.folder / start}
        for _ in range(clicks):
            pages = [self.pages[path] for path in reached]
            links = [(page, link) for page in pages for link in page.links if link.in_text]
            ends = [self.target(page, link) for page, link in links]
            reached = reached | {at[0] for at in ends if at and at[0] in self.pages}
        return {path.relative_to(self.folder).as_posix(): self.pages[path].text for path in reached}
