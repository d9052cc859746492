"""The pages work on GitHub and on the site: every relative link leads to a file, and no page is left out of mkdocs.yml.

`mkdocs build --strict` checks pages and headings, but neither pictures nor links that leave docs/.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
LINK = re.compile(r"\]\(([^()\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    """Targets of the relative links and pictures, without their anchors."""
    found: list[str] = LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))
    targets = [target.partition("#")[0] for target in found if not re.match(r"\w+:", target)]
    return [target for target in targets if target]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_a_relative_link_leads_to_a_file(page: Path) -> None:
    assert [target for target in links(page) if not (page.parent / target).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_of_the_site_links_to_nothing_outside_it(page: Path) -> None:
    assert [target for target in links(page) if target.startswith("..")] == []


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == [page.name for page in PAGES]
