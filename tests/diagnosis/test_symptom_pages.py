from pathlib import Path

from tools.symptom_pages import symptoms_markdown

PAGE = Path(__file__).parents[2] / "docs" / "symptoms.md"


def test_the_page_is_made_from_the_pages_of_the_rules():
    assert PAGE.read_text(encoding="utf-8") == symptoms_markdown(), (
        "run: python tools/symptom_pages.py > docs/symptoms.md"
    )
