"""Docs that are made from the code are as the code would make them today."""

from __future__ import annotations

from pathlib import Path

from nanolens.config.fields import settings_markdown

DOCS = Path(__file__).parent.parent / "docs"


def test_the_settings_page_is_made_from_the_fields():
    page = (DOCS / "settings.md").read_text(encoding="utf-8")
    assert page == settings_markdown(str), "run: python -m nanolens.config.fields > docs/settings.md"
