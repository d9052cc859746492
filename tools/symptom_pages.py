"""docs/symptoms.md, made from the pages of `diagnose --why`: `python tools/symptom_pages.py > docs/symptoms.md`."""

from __future__ import annotations

from importlib.resources import files

HEAD = """# What nanolens looks for

Each finding of `nanolens diagnose` has a code. `nanolens diagnose --why=CODE` prints the same text.
"""


def symptoms_markdown() -> str:
    pages = files("nanolens.diagnosis").joinpath("pages.md").read_text(encoding="utf-8")
    return f"{HEAD}\n{pages[pages.index('## ') :]}"


if __name__ == "__main__":
    print(symptoms_markdown(), end="")
