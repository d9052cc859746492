"""Which column of a table holds the documents, where the user does not say."""

from __future__ import annotations

from pathlib import Path

from nanolens.errors import fault
from nanolens.message import msg

USUAL = ("text", "content", "document", "body")


def choose_column(of_text: list[str], all_columns: list[str], path: Path) -> str:
    """One with a usual name, or the only one that holds text."""
    for name in USUAL:
        if name in of_text:
            return name
    if len(of_text) == 1:
        return of_text[0]
    raise fault(
        msg("which column holds the text? There are {columns:code}", columns=all_columns),
        where=msg("{path:code}", path=str(path)),
        fix=msg("name it: {option:code}", option=f"--text_column={of_text[0] if of_text else 'NAME'}"),
    )


def require_column(column: str, all_columns: list[str], path: Path) -> None:
    if column not in all_columns:
        raise fault(
            msg("there is no column {column:code}, only {columns:code}", column=column, columns=all_columns),
            where=msg("{path:code}", path=str(path)),
            fix=msg("name one of them with {option:code}", option="--text_column"),
        )
