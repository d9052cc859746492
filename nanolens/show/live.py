"""The live view: one screen that says where a run is, fed by events alone, so that `train` and `watch` show the same.

`screen` turns a Progress into rows of (text, style) and is pure; LiveView draws them with rich, at most REFRESH_HZ times a second and
never for more than COST_FRAC of a core: it shares the interpreter with the training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from nanolens.message import Message, msg
from nanolens.present.curve import columns_of, draw, row_of
from nanolens.record import events as e
from nanolens.record.progress import Evaluation, Progress
from nanolens.show.words import say, show

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

REFRESH_HZ = 4
COST_FRAC = 0.005  # of one core: where a frame is expensive, there are fewer of them
Row = list[tuple[str, str]]  # pieces of text, each with a rich style

DIM, STRONG, ACCENT, GOOD, WARN, BAD = "bright_black", "bold", "cyan", "green", "yellow", "red"
PART_STYLES = {
    "train": "cyan", "data": "blue", "eval": "yellow", "checkpoint": "magenta", "sample": "green", "compile": "red", "other": DIM,
}  # fmt: skip
PART_NAMES = {
    "train": msg("train"), "data": msg("data"), "eval": msg("eval"), "checkpoint": msg("checkpoint"), "sample": msg("sample"),
    "compile": msg("compile"), "other": msg("other"),
}  # fmt: skip
STATES = {
    "starting": (msg("starting"), DIM), "running": (msg("training"), GOOD), "finished": (msg("finished"), GOOD),
    "stopped": (msg("stopped"), WARN), "failed": (msg("failed"), BAD), "gone": (msg("process gone"), BAD), "silent": (msg("no news"), WARN),
}  # fmt: skip


CHECKS = {
    "token_ids": (msg("largest token id"), "count"), "first_loss": (msg("first loss"), "nats"),
    "train_val_overlap": (msg("val text that train holds too"), "share"), "causal_leak": (msg("what a token sees of the future"), "number"),
    "parameters_change": (msg("parameters that an update moves"), "share"), "checkpoint_rehearsal": (msg("checkpoint rehearsal"), "bytes"),
}  # fmt: skip
"""Names of the pre-flight checks in words, and the kind of their numbers."""


class LiveView:
    """A listener: takes events as they come, and redraws on `tick`. Only one thread may use it."""

    name = "live view"
    poll_s = 1 / REFRESH_HZ

    def __init__(
        self, progress: Progress, console: Console, *, hint: Message | None = None, lang: str = "en", state: Callable[[], str] | None = None
    ):
        from rich.live import Live

        self.progress = progress
        self.console = console
        self._hint, self._lang, self._state = hint, lang, state
        self._next_at_s = 0.0
        self._size = console.size
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")

    def __call__(self, event: e.Event) -> None:
        self.progress.take(event)

    def tick(self) -> None:
        """Draws, unless the last drawing is too fresh."""
        if not self._live.is_started:
            self._live.start()
        if time.monotonic() < self._next_at_s:
            return
        started_s = time.thread_time()
        if self.console.size != self._size:  # rows drawn for another width have wrapped: start on a clean screen
            self._size = self.console.size
            self.console.clear()
        self._live.update(Screen(self.rows()), refresh=True)
        cost_s = time.thread_time() - started_s
        self._next_at_s = time.monotonic() + max(0.9 / REFRESH_HZ, cost_s / COST_FRAC)

    def rows(self) -> list[Row]:
        width, height = self._size
        state = self._state() if self._state else ""
        return screen(
            self.progress, width, max(1, height - 1), now_s=time.time(), state=state, hint=self._hint, lang=self._lang,
            plain=self.console.options.ascii_only,
        )  # fmt: skip

    def close(self) -> None:
        if self._live.is_started:
            self._live.stop()


class Screen:
    """Rows for rich, already laid out."""

    def __init__(self, rows: Sequence[Row]):
        self.rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        for row in self.rows:
            for text, style in row:
                yield Segment(text, console.get_style(style) if style else None)
            yield Segment.line()


def screen(
    it: Progress, width: int, height: int, *, now_s: float, state: str = "", hint: Message | None = None, lang: str = "en",
    plain: bool = False,
) -> list[Row]:  # fmt: skip
    """At most `height` rows of at most `width` columns. What matters least goes first where there is little room."""
    width = max(20, width)
    view = _View(it, width, now_s, state or it.state, lang, plain)
    head, speed, warnings = view.head(), view.speed(), view.notices(3 if height > 30 else 2)
    foot = view.foot(hint)
    if warnings:
        foot = foot[1:]
    started = bool(it.curve.steps or it.evals)
    room = height - len(head) - len(speed) - len(warnings) - len(foot) - 2  # two blank rows
    sample_rows = 0
    if it.sample is not None and room >= 10:
        sample_rows = min(max(4, room // 3), 14)
    chart_rows = room - sample_rows - (1 if sample_rows else 0)
    body: list[Row] = []
    if not started:
        body = view.preparations(max(0, room))
    elif chart_rows >= 4:
        body = view.chart(min(chart_rows, 22))
    rows = [*head, [], *body, []] if body else [*head, []]
    rows += speed
    if sample_rows and started:
        rows += [[], *view.sample(sample_rows)]
    rows += warnings + foot
    return [crop(row, width) for row in rows[:height]]  # every row passes here, and every text is cleaned


class _View:
    def __init__(self, it: Progress, width: int, now_s: float, state: str, lang: str, plain: bool):
        self.it, self.width, self.now_s, self.state, self.lang, self.plain = it, width, now_s, state, lang, plain

    def say(self, message: Message) -> str:
        return say(message, self.lang)

    def show(self, value: object, kind: str) -> str:
        return show(value, kind, self.lang)

    # --- where it is

    def head(self) -> list[Row]:
        about = self.it.about
        facts = [
            self.say(msg("{count:parameters} parameters", count=about.parameters)) if about.parameters else "",
            about.arch, " ".join(filter(None, (about.device, about.dtype))), about.dataset,
        ]  # fmt: skip
        word, style = STATES.get(self.state, STATES["running"])
        title: Row = [(about.name, STRONG), *[(f" · {fact}", DIM) for fact in facts if fact]]
        return [self._ends(title, [(self.say(word), style)]), self._bar(), self._clock()]

    def _bar(self) -> Row:
        it, total = self.it, self.it.about.max_iters
        steps = self.say(msg("step {step:count}", step=it.step))
        if total is None:
            return [(steps, "")]
        steps = self.say(msg("step {step:count} of {steps:count}", step=it.step, steps=total))
        share = min(1.0, it.step / total) if total else 1.0
        percent = self.show(math.floor(share * 100) / 100, "share")
        label = f"  {percent:>4}  {steps}"
        room = max(4, self.width - cells(label))
        done = round(share * room)
        full, rest = ("#", "-") if self.plain else ("━", "─")
        return [(full * done, ACCENT), (rest * (room - done), DIM), (label, "")]

    def _clock(self) -> Row:
        it = self.it
        wall_s = it.wall_s(self.now_s)
        parts = []
        if self.state not in ("starting", "running", "silent"):
            parts.append(self.say(msg("took {elapsed:seconds}", elapsed=wall_s)))
        elif wall_s >= 1:
            parts.append(self.say(msg("{elapsed:rough_seconds} so far", elapsed=wall_s)))
        left_s = it.left_s()
        if self.state in ("running", "silent") and math.isfinite(left_s) and it.recent:
            ends = time.strftime("%H:%M", time.localtime(self.now_s + left_s))
            if left_s < 20 * 3600:
                parts.append(self.say(msg("{left:rough_seconds} to go, until {ends:code}", left=max(1, left_s), ends=ends)))
            else:
                parts.append(self.say(msg("{left:rough_seconds} to go", left=left_s)))
        if self.state == "failed" and it.because:
            parts.append(it.because)
        saved = [] if it.saved_step is None else [(self.say(msg("saved at {step:count}", step=it.saved_step)), DIM)]
        return self._ends([(" · ".join(parts), DIM)], saved)

    # --- the loss

    def chart(self, rows: int) -> list[Row]:
        """The curve on the left, the last evaluations on the right; `rows` with the title and the step axis."""
        it = self.it
        table = self._table(rows - 2) if self.width >= 64 else []
        table_width = max((_length(row) for row in table), default=0)
        curve_width = self.width - table_width - (3 if table else 0)
        drawn = self._curve(rows - 2, curve_width)
        now = self.show(it.loss, "nats")
        title: Row = [(self.say(msg("loss")), STRONG), ("  ", ""), (now, ACCENT)]
        if math.isfinite(it.rate):
            title.append(("  " + self.say(msg("learning rate {rate:rate}", rate=it.rate)), DIM))
        if not table:
            last = it.evals[-1] if it.evals else None
            if last is not None:
                title.append(("  " + self.say(msg("val {val:nats} at {step:count}", val=last.val, step=last.step)), WARN))
            return [title, *drawn]
        lines = []
        for i, left in enumerate([title, *drawn]):
            right = table[i] if i < len(table) else []
            lines.append([*_padded(left, curve_width), ("   ", ""), *right])
        return lines

    def _curve(self, rows: int, width: int) -> list[Row]:
        it = self.it
        losses = it.curve.losses
        marks = [(row.step, row.val) for row in it.evals if math.isfinite(row.val)]
        if not (losses or marks) or rows < 2:
            return []
        last = max([it.step, 1])
        per_cell = 1 if self.plain else 2
        margin = 5  # "4.17 ": wide enough for any loss below a hundred
        span = max(4, width - margin - 1)
        columns = columns_of(it.curve.steps, losses, 0, last, span * per_cell)
        low, high = _edges(columns, marks, last)
        labels = [self.show(value, "rough_nats")[: margin - 1] for value in (high, low)]
        lines = [list(line.ljust(span)[:span]) for line in draw(columns, rows, low, high, plain=self.plain)]
        dots = {(row_of(val, low, high, rows), min(span - 1, int(step / last * span))) for step, val in marks}
        drawn: list[Row] = []
        for y, line in enumerate(lines):
            label = labels[0] if y == 0 else labels[1] if y == rows - 1 else ""
            drawn.append(
                [
                    (label.rjust(margin - 1) + " ", DIM),
                    ("|" if self.plain else "│", DIM),
                    *_marked(line, y, dots, "o" if self.plain else "•"),
                ]
            )
        left, right = "0", self.show(last, "count")
        axis = left + right.rjust(span - len(left))
        drawn.append([(" " * (margin + 1) + axis, DIM)])
        return drawn

    def _table(self, rows: int) -> list[Row]:
        """The last evaluations, newest at the bottom, the best one marked."""
        it = self.it
        if not it.evals:
            return []
        best = it.best
        header = (self.say(msg("step")), self.say(msg("train")), self.say(msg("val")), "")
        shown = it.evals[-max(1, rows - 1) :]
        lines = [self._table_row(row, best) for row in shown]
        widths = [max(cells(line[i]) for line in [header, *lines]) for i in range(3)]
        out: list[Row] = [[("  ".join(_right(text, width) for text, width in zip(header, widths, strict=False)), DIM)]]
        for row, line in zip(shown, lines, strict=True):
            is_best = best is not None and row.step == best.step
            text = [_right(text, width) for text, width in zip(line, widths, strict=False)]
            out.append([(f"{text[0]}  ", DIM), (f"{text[1]}  ", ""), (text[2], WARN), (f" {line[3]}", GOOD if is_best else DIM)])
        return out

    def _table_row(self, row: Evaluation, best: Evaluation | None) -> tuple[str, str, str, str]:
        note = ""
        if math.isfinite(row.val_se):
            note = "± " + self.show(row.val_se, "nats")
        if best is not None and row.step == best.step:
            note = " ".join(filter(None, (note, self.say(msg("best")))))
        return self.show(row.step, "count"), self.show(row.train, "nats"), self.show(row.val, "nats"), note

    # --- before the first step

    def preparations(self, rows: int) -> list[Row]:
        it = self.it
        lines: list[Row] = []
        for check in it.checks:
            name, kind = CHECKS.get(check.check, (None, "number"))
            said = [("  ok  ", GOOD), (check.check if name is None else self.say(name), "")]
            if check.seen is not None:
                said.append((f"  {self.show(float(check.seen), kind)}", ACCENT))
            if check.usual is not None:
                said.append(("  " + self.say(msg("usual {usual}", usual=self.show(float(check.usual), kind))), DIM))
            lines.append(said)
        for chosen in it.chosen:
            lines.append([("  ", ""), (f"{chosen.what} = {chosen.value}", ""), (f"  {chosen.because}", DIM)])
        return lines[-rows:] if rows else []

    # --- speed, time

    def speed(self) -> list[Row]:
        it = self.it
        if not it.recent:
            return []
        facts = [self.show(it.tokens_per_s, "tokens_per_s")] if math.isfinite(it.tokens_per_s) else []
        facts.append(self.say(msg("{took:seconds} a step", took=it.update_s)))
        row: Row = [(self.say(msg("speed")) + "  ", STRONG), (" · ".join(facts), "")]
        if math.isfinite(it.mfu_frac):
            mfu = msg("MFU {mfu:share} of {peak:flops_per_s}", mfu=it.mfu_frac, peak=it.about.peak_flops)
            row.append((" · " + self.say(mfu), ""))
            row.append((f" ({it.about.peak_origin.partition(':')[0]})", DIM))
        return [row, *self._time()]

    def _time(self) -> list[Row]:
        parts = {name: seconds for name, seconds in self.it.time_parts(self.now_s).items() if seconds > 0}
        total = sum(parts.values())
        if not total:
            return []
        ordered = sorted(parts.items(), key=lambda part: (part[0] == "other", -part[1]))
        name, above = self.say(msg("time")), self.say(msg("speed"))
        label = name + " " * (max(0, cells(above) - cells(name)) + 2)
        room = max(8, self.width - cells(label))
        widths = _shares([seconds / total for _, seconds in ordered], room)
        glyph = "=" if self.plain else "█"
        bar: Row = [(label, STRONG), *[(glyph * n, PART_STYLES[name]) for (name, _), n in zip(ordered, widths, strict=True)]]
        legend: Row = [(" " * cells(label), "")]
        for name, seconds in ordered:
            legend += [(self.say(PART_NAMES[name]), PART_STYLES[name]), (" " + self.show(_rounded(seconds / total), "share") + "  ", "")]
        return [bar, legend]

    # --- what it writes, what went wrong

    def sample(self, rows: int) -> list[Row]:
        assert self.it.sample is not None
        title: Row = [(self.say(msg("sample")), STRONG), ("  " + self.say(msg("at step {step:count}", step=self.it.sample.step)), DIM)]
        lines = wrapped(self.it.sample.text, self.width - 2, rows - 1)
        return [title, *[[("  " + line, "")] for line in lines]]

    def notices(self, most: int) -> list[Row]:
        it = self.it
        if not it.notices:
            return []
        shown = it.notices[-most:]
        rows: list[Row] = [[]]
        for _, said in shown:
            rows.append([("! ", WARN), (self.say(said), WARN)])
        if len(it.notices) > len(shown):
            more = msg("and {count:count} more, in the record", count=len(it.notices) - len(shown))
            rows.append([("  " + self.say(more), DIM)])
        return rows

    def foot(self, hint: Message | None) -> list[Row]:
        return [] if hint is None else [[], [(self.say(hint), DIM)]]

    def _ends(self, left: Row, right: Row) -> Row:
        """`left` and `right` at the two ends of a row; `left` gives way."""
        room = self.width - _length(right) - (2 if right else 0)
        return [*_padded(crop(left, room), room), ("  " if right else "", ""), *right]


def crop(row: Row, width: int) -> Row:
    """The row, cut to `width` columns, and without anything that would steer the terminal."""
    out: Row = []
    for text, style in row:
        if width <= 0:
            break
        if not text.isprintable():
            text = clean(text)
        if cells(text) > width:
            text = _cut(text, width)
        out.append((text, style))
        width -= cells(text)
    return out


def clean(text: str) -> str:
    """One line without control characters: names and texts from a run folder may hold anything, escape sequences included."""
    return "".join(c if c.isprintable() else " " if c in "\n\t" else "·" for c in text)


def wrapped(text: str, width: int, most: int) -> list[str]:
    """The first `most` lines of a text, its own line breaks kept, long lines broken at blanks."""
    lines: list[str] = []
    for line in text.strip("\n").splitlines():
        line = clean(line).rstrip()
        if not line and (not lines or not lines[-1]):
            continue
        while cells(line) > width and len(lines) < most:
            head = _cut(line, width)
            at = head.rfind(" ") if " " in head[width // 2 :] else len(head)
            lines.append(line[:at].rstrip())
            line = line[at:].lstrip()
        lines.append(line)
        if len(lines) >= most:
            break
    return lines[:most]


def cells(text: str) -> int:
    """Columns on a terminal: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _cut(text: str, width: int) -> str:
    while cells(text) > width:
        text = text[: max(0, len(text) - max(1, (cells(text) - width) // 2))]
    return text


def _length(row: Row) -> int:
    return sum(cells(text) for text, _ in row)


def _padded(row: Row, width: int) -> Row:
    return [*row, (" " * max(0, width - _length(row)), "")]


def _right(text: str, width: int) -> str:
    return " " * max(0, width - cells(text)) + text


def _marked(line: Sequence[str], y: int, dots: set[tuple[int, int]], glyph: str) -> Iterable[tuple[str, str]]:
    """A drawn line with the evaluations on it in their own colour."""
    places = sorted(x for row, x in dots if row == y)
    start = 0
    for x in places:
        if x > start:
            yield "".join(line[start:x]), ACCENT
        yield glyph, WARN
        start = x + 1
    yield "".join(line[start:]), ACCENT


def _edges(columns: Sequence[float], marks: Sequence[tuple[int, float]], last: int) -> tuple[float, float]:
    """Lower and upper edge. The first tenth of a run falls so far that the rest would be a flat line, so it may leave the picture."""
    drawn = [value for value in columns if not math.isnan(value)] + [val for _, val in marks]
    later = [value for i, value in enumerate(columns) if i > len(columns) / 10 and not math.isnan(value)]
    later += [val for step, val in marks if step > last / 10]
    return min(drawn), max(later or drawn)


def _shares(shares: Sequence[float], room: int) -> list[int]:
    """Whole columns that add up to `room`, by largest remainder."""
    exact = [share * room for share in shares]
    whole = [math.floor(x) for x in exact]
    for i in sorted(range(len(exact)), key=lambda i: whole[i] - exact[i])[: room - sum(whole)]:
        whole[i] += 1
    return whole


def _rounded(share: float) -> float:
    return round(share, 2) if share >= 0.01 else round(share, 3)
