"""docs/symptoms.md, made from the symptoms' own docstrings: `python -m nanolens.present.symptom_pages > docs/symptoms.md`."""

from __future__ import annotations

import inspect

HEAD = """# What nanolens looks for

Each finding of `nanolens diagnose` has a code. `nanolens diagnose --why=CODE` prints the same text. This page is made from the code.
"""


def symptoms_markdown() -> str:
    from nanolens.analysis.symptoms import NAMES, module

    pages = [HEAD]
    for name in NAMES:
        symptom = module(name)
        title, *paragraphs = inspect.cleandoc(symptom.__doc__ or "").split("\n\n")
        codes = ", ".join(f"`{code}`" for code in symptom.CODES)
        pages.append("\n\n".join([f"## {' '.join(title.split()).rstrip('.')}", codes, *map(_paragraph, paragraphs)]) + "\n")
    return "\n".join(pages)


def _paragraph(text: str) -> str:
    if text.startswith("    "):
        return text  # an indented block is literal in Markdown too
    joined = " ".join(text.split())
    heading, _, rest = joined.partition(". ")
    return f"**{heading}.** {rest}"


if __name__ == "__main__":
    print(symptoms_markdown(), end="")
