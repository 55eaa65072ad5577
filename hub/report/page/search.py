"""The search of the first page: the parameters ``q`` and ``problems`` of its address. page.js does the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlencode

PROBLEMS: Final = ("bad", "warn")
"""Kinds of signs that "Problems only" keeps."""
LONGEST: Final = 253
"""Most characters of a search: the longest name of a Kubernetes object."""


class Search(NamedTuple):
    """What the page shows: names that contain ``text``, and only problems if ``problems``."""

    text: str = ""
    problems: bool = False

    def matches(self, name: str, kind: str) -> bool:
        """Whether to show an object with this name and this kind of sign."""
        return self.text in name and (kind in PROBLEMS or not self.problems)

    @property
    def address(self) -> str:
        """The address of the page with this search."""
        query = {"q": self.text} if self.text else {}
        query |= {"problems": "1"} if self.problems else {}
        return f"/?{urlencode(query)}" if query else "/"


EVERYTHING: Final = Search()
"""The search that finds everything."""


def search_of(query: Mapping[str, str]) -> Search:
    """The search in a page's address."""
    return Search(query.get("q", "").strip().lower()[:LONGEST], query.get("problems") == "1")
