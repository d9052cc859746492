"""The live view: one screen that says where a run is, fed by events alone, so that `train` and `watch` show the same.

`screen` turns a Progress into rows of (text, style) and is pure; LiveView draws them with rich, at most REFRESH_HZ
times a second and never for more than COST_FRAC of a core: it shares the interpreter with the training."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from nanolens.message import Message, msg
from nanolens.record import events as e
from nanolens.record.events import PART_NAMES
from nanolens.record.progress import Progress, Watching, reason
from nanolens.record.store import as_typed
from nanolens.show.curves import columns_of, draw, row_of
from nanolens.show.document import aligned, cells, clean, cut, padded, wrapped
from nanolens.show.words import say, show

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

REFRESH_HZ = 4
COST_FRAC = 0.005  # of one core: where a frame is expensive, there are fewer of them
Row = list[tuple[str, str]]  # pieces of text, each with a rich style

DIM, STRONG, ACCENT, GOOD, WARN, BAD = "bright_black", "bold", "cyan", "green", "yellow", "red"
PART_STYLES = dict(zip(PART_NAMES, ("cyan", "blue", "yellow", "magenta", "green", "red", DIM), strict=True))
STATES = {
    "starting": (msg("starting"), DIM),
    "running": (msg("training"), GOOD),
    "finished": (msg("finished"), GOOD),
    "stopped": (msg("stopped"), WARN),
    "failed": (msg("failed"), BAD),
    "gone": (msg("process died"), BAD),
    "silent": (msg("no recent output"), WARN),
}
CHECK_NAMES = {
    "token_ids": (msg("largest token id"), "count"),
    "first_loss": (msg("first loss"), "nats"),
    "train_val_overlap": (msg("val text also in train"), "share"),
    "causal_leak": (msg("future tokens visible to a token"), "number"),
    "parameters_change": (msg("parameters changed by an update"), "share"),
    "checkpoint_rehearsal": (msg("test checkpoint"), "bytes"),
}
"""Names of the pre-flight checks in words, and the kind of their numbers."""


class LiveView:
    """A listener: takes events as they come, and redraws on `tick`. Only one thread may use it."""

    name = "live view"
    poll_s = 1 / REFRESH_HZ

    def __init__(
        self,
        progress: Progress,
        console: Console,
        *,
        hint: Message | None = None,
        lang: str = "en",
        state: Callable[[], str] | None = None,
    ):
        from rich.live import Live

        self.progress = progress
        self.console = console
        self._state = state
        self._screen = partial(screen, hint=hint, lang=lang, plain=console.options.ascii_only)
        self._next_at_s = 0.0
        self._size = console.size
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")

    def __call__(self, event: e.Event) -> None:
        """The progress is updated by the emitter of the events."""

    def tick(self) -> None:
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
        return self._screen(self.progress.copy(), width, max(1, height - 1), now_s=time.time(), state=state)

    def close(self) -> None:
        if self._live.is_started:
            self._live.stop()


class Screen:
    def __init__(self, rows: Sequence[Row]):
        self.rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        for row in self.rows:
            for text, style in row:
                yield Segment(text, console.get_style(style) if style else None)
            yield Segment.line()


def screen(
    it: Progress,
    width: int,
    height: int,
    *,
    now_s: float,
    state: str = "",
    hint: Message | None = None,
    lang: str = "en",
    plain: bool = False,
) -> list[Row]:
    """At most `height` rows of at most `width` columns. What matters least goes first where there is little room."""
    width = max(20, width)
    view = _View(it, width, now_s, state or it.state, lang, plain)
    head, speed, warnings = view.head(), view.speed(), view.notices(3 if height > 30 else 2)
    foot: list[Row] = [] if hint is None else [[], [(say(hint, lang), DIM)]]
    if warnings:
        foot = foot[1:]
    started = bool(it.curve.steps or it.evals)
    room = height - len(head) - len(speed) - len(warnings) - len(foot) - 2  # two blank rows
    sample_rows = min(max(4, room // 3), 14) if it.sample is not None and room >= 10 else 0
    chart_rows = room - sample_rows - (1 if sample_rows else 0)
    if started:
        body = view.chart(min(chart_rows, 22)) if chart_rows >= 4 else []
    else:
        body = view.preparations(max(0, room))
    written = [[], *view.sample(sample_rows)] if sample_rows and started else []
    rows = [*head, [], *body, *([[]] if body else []), *speed, *written, *warnings, *foot]
    return [crop(row, width) for row in rows[:height]]  # every row passes here, and every text is cleaned


class _View:
    def __init__(self, it: Progress, width: int, now_s: float, state: str, lang: str, plain: bool):
        self.it, self.width, self.now_s, self.state, self.plain = it, width, now_s, state, plain
        self.say, self.show = partial(say, lang=lang), partial(show, lang=lang)

    # --- where it is

    def head(self) -> list[Row]:
        about = self.it.about
        size = self.say(msg("{count:parameters} parameters", about.parameters)) if about.parameters else ""
        facts = [size, about.arch, " ".join(filter(None, (about.device, about.dtype))), about.dataset]
        word, style = STATES.get(self.state, STATES["running"])
        title: Row = [(about.name, STRONG), *[(f" · {fact}", DIM) for fact in facts if fact]]
        return [self._ends(title, [(self.say(word), style)]), self._bar(), self._clock()]

    def _bar(self) -> Row:
        it, total = self.it, self.it.about.max_iters
        if total is None:
            return [(self.say(msg("step {step:count}", it.step)), "")]
        steps = self.say(msg("step {step:count} of {steps:count}", it.step, total))
        share = min(1.0, it.step / total) if total else 1.0
        percent = self.show(math.floor(share * 100) / 100, "share")
        label = f"  {percent:>4}  {steps}"
        room = max(4, self.width - cells(label))
        done = round(share * room)
        full, rest = "#-" if self.plain else "━─"
        return [(full * done, ACCENT), (rest * (room - done), DIM), (label, "")]

    def _clock(self) -> Row:
        it = self.it
        wall_s = it.wall_s(self.now_s)
        parts: list[Message | str] = []
        if self.state not in ("starting", "running", "silent"):
            parts.append(msg("took {elapsed:seconds}", wall_s))
        elif wall_s >= 1:
            parts.append(msg("{elapsed:rough_seconds} so far", wall_s))
        left_s = it.left_s()
        if self.state in ("running", "silent") and math.isfinite(left_s) and it.recent:
            ends = time.strftime("%H:%M", time.localtime(self.now_s + left_s))
            if left_s < 20 * 3600:
                parts.append(msg("{left:rough_seconds} to go, until {ends:code}", max(1, left_s), ends))
            else:
                parts.append(msg("{left:rough_seconds} to go", left_s))
        if self.state == "failed" and it.because:
            parts.append(it.because)
        saved = [] if it.saved_step is None else [(self.say(msg("saved at {step:count}", it.saved_step)), DIM)]
        return self._ends([(" · ".join(map(self.show, parts)), DIM)], saved)

    # --- the loss

    def chart(self, rows: int) -> list[Row]:
        """The curve on the left, the last evaluations on the right; `rows` with the title and the step axis."""
        it = self.it
        table = self._table(rows - 2) if self.width >= 64 else []
        table_width = max((_length(row) for row in table), default=0)
        curve_width = self.width - table_width - (3 if table else 0)
        drawn = self._curve(rows - 2, curve_width)
        title: Row = [(self.say(msg("loss")), STRONG), ("  ", ""), (self.show(it.loss, "nats"), ACCENT)]
        if math.isfinite(it.lr):
            title.append(("  " + self.say(msg("lr {rate:rate}", it.lr)), DIM))
        if not table:
            for last in it.evals[-1:]:
                title.append(("  " + self.say(msg("val {val:nats} at {step:count}", last.val, last.step)), WARN))
            return [title, *drawn]
        pairs = zip([title, *drawn], [*table, *[[] for _ in drawn]], strict=False)
        return [[*_padded(left, curve_width), ("   ", ""), *right] for left, right in pairs]

    def _curve(self, rows: int, width: int) -> list[Row]:
        it = self.it
        losses = it.curve.losses
        marks = [(row.step, row.val) for row in it.evals if math.isfinite(row.val)]
        if not (losses or marks) or rows < 2:
            return []
        last = max(it.step, 1)
        edge, dot = ("|", "o") if self.plain else ("│", "•")
        margin = 5  # "4.17 ": wide enough for any loss below a hundred
        span = max(4, width - margin - 1)
        columns = columns_of(it.curve.steps, losses, 0, last, span * (1 if self.plain else 2))
        low, high = _edges(columns, marks, last)
        labels = {0: high, rows - 1: low}
        dots = {(row_of(val, low, high, rows), min(span - 1, int(step / last * span))) for step, val in marks}
        drawn: list[Row] = []
        for y, line in enumerate(draw(columns, rows, low, high, plain=self.plain)):
            label = self.show(labels[y], "rough_nats")[: margin - 1] if y in labels else ""
            places = sorted(x for row, x in dots if row == y)
            scale = [(label.rjust(margin - 1) + " ", DIM), (edge, DIM)]
            drawn.append([*scale, *_marked(line.ljust(span)[:span], places, dot)])
        axis = "0" + self.show(last, "count").rjust(span - 1)
        return [*drawn, [(" " * (margin + 1) + axis, DIM)]]

    def _table(self, rows: int) -> list[Row]:
        """The last evaluations, newest at the bottom, the best one marked."""
        it = self.it
        if not it.evals:
            return []
        best = -1 if it.best is None else it.best.step
        shown = it.evals[-max(1, rows - 1) :]
        header = [self.say(msg("step")), self.say(msg("train")), self.say(msg("val"))]
        numbers = [
            [self.show(row.step, "count"), self.show(row.train, "nats"), self.show(row.val, "nats")] for row in shown
        ]
        head, *lines = aligned([header, *numbers])
        out: list[Row] = [[("  ".join(head), DIM)]]
        for row, (step, train, val) in zip(shown, lines, strict=True):
            error = "± " + self.show(row.val_se, "nats") if math.isfinite(row.val_se) else ""
            note = " ".join(filter(None, (error, self.say(msg("best")) if row.step == best else "")))
            style = GOOD if row.step == best else DIM
            out.append([(f"{step}  ", DIM), (f"{train}  ", ""), (val, WARN), (f" {note}", style)])
        return out

    # --- before the first step

    def preparations(self, rows: int) -> list[Row]:
        lines: list[Row] = []
        for check in self.it.checks:
            name, kind = CHECK_NAMES.get(check.check, (None, "number"))
            said = [("  ok  ", GOOD), (check.check if name is None else self.say(name), "")]
            if check.seen is not None:
                said.append((f"  {self.show(float(check.seen), kind)}", ACCENT))
            if check.usual is not None:
                said.append(("  " + self.say(msg("expected {usual}", self.show(float(check.usual), kind))), DIM))
            lines.append(said)
        for chosen in self.it.chosen:
            lines.append([(f"  {chosen.what} = {chosen.value}", ""), (f"  {self.show(reason(chosen))}", DIM)])
        return lines[-rows:] if rows else []

    # --- speed, time

    def speed(self) -> list[Row]:
        it = self.it
        if not it.recent:
            return []
        facts = [self.show(it.tokens_per_s, "tokens_per_s")] if math.isfinite(it.tokens_per_s) else []
        facts.append(self.say(msg("{took:seconds} per step", it.update_s)))
        row: Row = [(self.say(msg("speed")) + "  ", STRONG), (" · ".join(facts), "")]
        if math.isfinite(it.mfu_frac):
            mfu = msg("MFU {mfu:share} of {peak:flops_per_s}", it.mfu_frac, it.about.peak_flops)
            row.append((" · " + self.say(mfu), ""))
            row.append((f" ({it.about.peak_origin.partition(':')[0]})", DIM))
        return [row, *self._time()]

    def _time(self) -> list[Row]:
        parts = {name: seconds for name, seconds in self.it.time_parts(self.now_s).items() if seconds > 0}
        total = sum(parts.values())
        if not total:
            return []
        ordered = sorted(parts.items(), key=lambda part: (part[0] == "other", -part[1]))
        name = self.say(msg("time"))
        label = padded(name, max(cells(name), cells(self.say(msg("speed"))))) + "  "
        room = max(8, self.width - cells(label))
        widths = _shares([seconds / total for _, seconds in ordered], room)
        glyph = "=" if self.plain else "█"
        bar: Row = [(label, STRONG)]
        legend: Row = [(" " * cells(label), "")]
        for (part, seconds), size in zip(ordered, widths, strict=True):
            bar.append((glyph * size, PART_STYLES[part]))
            share = round(seconds / total, 2 if seconds / total >= 0.01 else 3)
            legend += [(self.say(PART_NAMES[part]), PART_STYLES[part]), (f" {self.show(share, 'share')}  ", "")]
        return [bar, legend]

    # --- what it writes, what went wrong

    def sample(self, rows: int) -> list[Row]:
        assert self.it.sample is not None
        when = self.say(msg("at step {step:count}", self.it.sample.step))
        lines = wrapped(self.it.sample.text, self.width - 2, rows - 1)
        return [[(self.say(msg("sample")), STRONG), ("  " + when, DIM)], *[[("  " + line, "")] for line in lines]]

    def notices(self, most: int) -> list[Row]:
        notices = self.it.notices
        rows: list[Row] = [[("! " + self.say(said), WARN)] for _, said in notices[-most:]]
        if len(notices) > most:
            more = msg("and {count:count} more, in the record", len(notices) - most)
            rows.append([("  " + self.say(more), DIM)])
        return [[], *rows] if rows else []

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
        text = cut(clean(text), width)
        out.append((text, style))
        width -= cells(text)
    return out


def _length(row: Row) -> int:
    return sum(cells(text) for text, _ in row)


def _padded(row: Row, width: int) -> Row:
    return [*row, (" " * max(0, width - _length(row)), "")]


def _marked(line: str, places: Sequence[int], glyph: str) -> Iterable[tuple[str, str]]:
    """A drawn line with the evaluations on it in their own colour."""
    start = 0
    for x in places:
        if x > start:
            yield line[start:x], ACCENT
        yield glyph, WARN
        start = x + 1
    yield line[start:], ACCENT


def _edges(columns: Sequence[float], marks: Sequence[tuple[int, float]], last: int) -> tuple[float, float]:
    """Lower and upper edge. The first tenth of a run, beside which the rest would be flat, may leave the picture."""
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


def follow_live(watching: Watching, lang: str = "en") -> None:
    """The live screen of a run that trains elsewhere, until it ends."""
    from rich.console import Console

    watching.catch_up()
    if watching.is_over:
        return
    stop = f"nanolens stop {as_typed(watching.folder)}"
    hint = msg("Ctrl-C leaves the view; training continues · {stop:code} stops it", stop)
    live = LiveView(watching.progress, Console(), hint=hint, lang=lang, state=watching.state)
    try:
        while not watching.is_over:
            live.tick()
            time.sleep(live.poll_s)
            watching.catch_up()
    finally:
        live.close()
