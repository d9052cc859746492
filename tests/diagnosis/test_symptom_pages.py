from pathlib import Path

from nanolens.present.symptom_pages import symptoms_markdown

PAGE = Path(__file__).parents[2] / "docs" / "symptoms.md"


def test_the_page_is_made_from_the_docstrings():
    assert PAGE.read_text(encoding="utf-8") == symptoms_markdown(), "run: python -m nanolens.present.symptom_pages > docs/symptoms.md"
