"""Layout: lines no wider than asked, in both scripts, nothing lost, and plain text where nobody looks at colours."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from nanolens.message import msg
from nanolens.show.answer import html, markdown
from nanolens.show.curves import Series
from nanolens.show.document import Chart, Table, TextBlock, bullet, cells, for_stream, painted, plain

HINDI = "मॉडल ने अभी कुछ नहीं सीखा, वह अटकल लगाता है: उससे ln 65 = 4.1744 मिलना चाहिए, मिला 4.2000।"


def test_a_paragraph_hangs_below_its_mark() -> None:
    assert (
        plain([TextBlock("one two three four five six seven", indent=2, mark="- ")], 30)
        == "  - one two three four five\n    six seven\n"
    )


def test_a_number_stays_with_its_unit() -> None:
    assert "35.0 TFLOP/s" in plain([TextBlock("that is a speed of about 35.0\u00a0TFLOP/s here")], 30)


def test_lines_to_be_copied_are_never_broken() -> None:
    command = "nanolens train shakespeare-char --max_iters=1750 --dropout=0.2 --weight_decay=0.1"
    assert command in plain([TextBlock(command, "command", indent=4)], 40)


def test_vowel_signs_above_and_below_take_no_column() -> None:
    assert cells("कु") == 1 and cells("abc") == 3


@given(st.text(alphabet="ab क म ि ु ँ ा।é", max_size=200), st.integers(30, 100))
def test_no_line_is_wider_than_asked_and_no_word_is_lost(text: str, width: int) -> None:
    words = [word[: width - 4] for word in text.split()]
    shown = plain([TextBlock(" ".join(words), mark="- ")], width)
    assert all(cells(line) <= width for line in shown.splitlines())
    assert shown.removeprefix("- ").split() == words or not words


def test_hindi_wraps_by_its_columns() -> None:
    lines = plain([TextBlock(HINDI)], 40).splitlines()
    assert len(lines) > 1 and all(cells(line) <= 40 for line in lines)
    assert " ".join(lines) == HINDI


def test_colours_change_nothing_but_the_colour() -> None:
    import re

    blocks = [
        TextBlock("title [not markup] :smile:", "head"),
        TextBlock(HINDI, indent=2, mark="- "),
        TextBlock("iter 0: loss 4.2", "quote"),
    ]
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted(blocks, 60)) == plain(blocks, 60)
    assert "\x1b[" in painted(blocks, 60)


def test_a_pipe_gets_plain_text() -> None:
    assert for_stream([TextBlock("title", "head")], io.StringIO()) == "title\n"


def test_a_foreign_line_cannot_steer_the_terminal() -> None:
    assert plain([TextBlock("iter 0\x1b[2J\x07: loss 4.2", "quote")]) == "iter 0·[2J·: loss 4.2\n"


PARTS = [
    TextBlock(msg("Plan for {data:code}", data="a|b"), "title"),
    TextBlock("", "body"),
    TextBlock(msg("In short"), "head"),
    bullet(msg("Best: {settings:code}, val loss {val:nats}.", settings="<lr>", val=1.5)),
    TextBlock("below it", "note", indent=5),
    bullet("second"),
    Table(["n", ""], [["1", msg("loss")]], left=(1,)),
    TextBlock("first command", "command", indent=2),
    TextBlock("second command", "command", indent=2),
    TextBlock("1 < 2"),
]


def test_markdown_has_headings_bullets_tables_and_fences() -> None:
    assert (
        markdown(PARTS)
        == """\
## Plan for `a|b`

### In short

- Best: `<lr>`, val loss 1.5000.; below it
- second

| n |  |
| ---: | --- |
| 1 | loss |

```
first command
second command
```

1 < 2
"""
    )


def test_html_holds_the_same_and_nothing_of_it_is_markup() -> None:
    said = html(PARTS)
    assert "<h2>Plan for <code>a|b</code></h2>" in said and "<li>second</li>" in said
    assert "<code>&lt;lr&gt;</code>" in said and "1 &lt; 2" in said and "<th>n</th>" in said


def test_a_chart_is_letters_in_a_pipe_and_a_fence_in_markdown() -> None:
    chart = Chart(
        "loss", [Series("a", [0, 1, 2], [3.0, 2.0, 1.0]), Series("b", [0, 1, 2], [3.0, 2.5, 2.0])], ["a", "b"]
    )
    assert "A a   B b" in plain([chart]) and markdown([chart]).startswith("```\nloss\n")
    assert "\x1b[" in painted([chart])
