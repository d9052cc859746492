"""Lines that were repeated, glued together or cut.

What it sees. Rows that occur more than once (terminal redraws, several ranks, a copied piece), several rows in one line, rows that
end early.

Why it matters. Counted twice, they would distort every average. They are counted once here, by their step.

When it is wrong. Two runs in one file with the same steps look like copies; give them apart.

What it looks like. Progress bars that write the same line again and again.

What to change. Nothing in the run.
"""

from __future__ import annotations

from collections.abc import Iterator

from nanolens.facts.case import Case
from nanolens.facts.finding import Evidence, Finding, NotChecked
from nanolens.message import msg

CODES = ("duplicate_lines",)


def look(case: Case) -> Iterator[Finding | NotChecked]:
    reading = case.run.reading
    repeated = reading.duplicates + reading.glued + reading.cut
    if not repeated:
        return
    evidence = Evidence(
        msg("rows repeated, glued or cut"),
        repeated,
        0,
        msg("{lines:count} lines", lines=reading.lines),
        msg(
            "{duplicates:count} repeated, {glued:count} glued, {cut:count} cut",
            duplicates=reading.duplicates,
            glued=reading.glued,
            cut=reading.cut,
        ),
        "count",
    )
    yield Finding(
        "duplicate_lines",
        "certain",
        msg("some lines are repeated, glued or cut; each step is counted once"),
        (evidence,),
        None,
        msg("the file holds two runs with the same steps"),
    )
