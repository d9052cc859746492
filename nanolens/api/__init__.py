"""The Python API: a function for each command, with the command's options as its arguments. Those that only read are
here, those that train, measure or convert in `training`, and `Run` in `run`.

    answer = nanolens.compare("first", "second")
    print(answer)             # what the command prints; a notebook shows it as a page
    answer.value              # the answer itself: `comparison.Comparison`
    answer.data()             # plain dicts and numbers, as `--json` gives them
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from nanolens import files
from nanolens.config.fields import as_text
from nanolens.errors import fault
from nanolens.message import Message, msg
from nanolens.record import RUNS
from nanolens.record.store import run_folder, source_name
from nanolens.show.answer import Answer
from nanolens.show.document import Part, Text, TextBlock

if TYPE_CHECKING:
    from nanolens.api.run import Run
    from nanolens.comparison import Comparison
    from nanolens.comparison.verdict import Verdict
    from nanolens.diagnosis import Diagnosis
    from nanolens.diagnosis.pages import Page
    from nanolens.explanation.glossary import Term
    from nanolens.explanation.pick import Explanation
    from nanolens.forecasting import Forecast, Refusal
    from nanolens.record.progress import Glance
    from nanolens.record.run import RunRecord
    from nanolens.refereeing import Refereed

Value = TypeVar("Value")
Target: TypeAlias = "str | Path | Run"


def diagnose(
    target: Target | None = None,
    *,
    config: str | None = None,
    hardware: str | None = None,
    plan: bool = False,
    why: str | None = None,
    all: bool = False,
    **known: object,
) -> Answer[Diagnosis] | Answer[Page]:
    """What is wrong with a run, or with the log of any trainer, how sure that is, and what to change. `plan` adds the
    run against what `nanolens plan` expected of the same settings, where it was asked. `why` asks what a code means. In
    words, `all` also shows in full what is in order beside faults, and what could not be checked."""
    if why:
        from nanolens.diagnosis.pages import page_answer, page_named

        return page_answer(page_named(why))
    from nanolens.logs import longest
    from nanolens.logs.open import open_runs

    records = open_runs(None if target is None else named(target), config, hardware, options_of(known))
    record = longest(records)
    others = [each for each in records if each is not record]
    if not plan:
        return diagnosis_answer(record, (), others, all)
    from nanolens.planning.question import planned_for
    from nanolens.planning.words import against_plan

    return diagnosis_answer(record, against_plan(planned_for(record)), others, all)


def diagnosis_answer(
    record: RunRecord, more: Iterable[Part] = (), others: Sequence[RunRecord] = (), is_all: bool = False
) -> Answer[Diagnosis]:
    from nanolens.diagnosis import MOST_JUDGED
    from nanolens.diagnosis import diagnose as diagnosis_of
    from nanolens.diagnosis.words import answer_of

    found = diagnosis_of(record)
    return answer_of(replace(found, others=tuple(diagnosis_of(each) for each in others[:MOST_JUDGED])), more, is_all)


def explain(
    target: Target | None = None,
    *,
    term: str | None = None,
    config: str | None = None,
    hardware: str | None = None,
    **known: object,
) -> Answer[Explanation] | Answer[Term]:
    """Each number of a run, a log or a config, and the story of the run; with `term`, one term of the glossary."""
    from nanolens.explanation.subject import ExplainTarget, explained, term_of
    from nanolens.explanation.words import answer_of, term_answer

    subject = ExplainTarget(None if target is None else named(target), config, hardware, options_of(known))
    if term:
        return term_answer(term_of(term, subject))
    if target is None and config is None:
        fix = msg("give a run, a log, a config, a preset, {dash:code} for a pipe, or {term:code}", "-", "--term=mfu")
        raise fault(msg("nothing to explain was given"), fix=fix)
    return answer_of(explained(subject))


def compare(
    *runs: Target,
    against: Sequence[Target] = (),
    config: Sequence[str] = (),
    hardware: Sequence[str] = (),
    rescore: bool = False,
    out: str | None = None,
    lang: str = "en",
    **known: object,
) -> Answer[Comparison]:
    """Which of these runs is better, on which axis, and whether that is more than noise; or why it cannot be decided.

    `against` makes two groups of repeats. `rescore` evaluates the checkpoints of all of them again, on the same text.
    `out` is a picture of the curves."""
    from nanolens.comparison import comparison_of
    from nanolens.comparison.words import answer_of, panels_of
    from nanolens.show.plots import picture, require_picture_name

    form = require_picture_name(out)
    one, other = [named(run) for run in runs], [named(run) for run in against]
    rescored: tuple[Verdict, ...] = ()
    if rescore:
        from nanolens.comparison.rescore import rescore as evaluated_again

        rescored = evaluated_again(one, other)
    found = comparison_of(one, other, config, hardware, options_of(known), rescored)
    if out:
        files.write_whole(Path(out), picture(panels_of(found, lang), form))
    return answer_of(found)


def referee(source: str | Path, *, score: str | None = None, better: str | None = None) -> Answer[Refereed]:
    """Which of many tries gained more than luck, what they are worth once corrected for having been picked, and what to
    repeat next. `source` is a folder of runs, a sweep, a folder of W&B or TensorBoard runs, a table (.csv, .tsv), or a
    git branch whose commits name scores ("repository@branch"). `score` names the column; `better` is "lower" or
    "higher"."""
    from nanolens.refereeing import refereed
    from nanolens.refereeing.words import answer_of

    return answer_of(refereed(str(source), score, better))


def forecast(
    run: Target,
    at: int | str | None = None,
    *,
    config: str | None = None,
    out: str | None = None,
    lang: str = "en",
    **known: object,
) -> Answer[Forecast | Refusal]:
    """Where the curve is going, with an interval, or why that cannot be predicted. `at` is a step, or so many tokens
    ("500Mtok"); `out` is a picture of it."""
    from nanolens.forecasting import Forecast, step_named
    from nanolens.forecasting import forecast as forecast_of
    from nanolens.forecasting.words import answer_of, panels_of
    from nanolens.show.plots import picture, require_picture_name

    form = require_picture_name(out)
    record = open_target(run, config, None, **known)
    found = forecast_of(record, None if at is None else step_named(str(at), record))
    if out and isinstance(found, Forecast):
        files.write_whole(Path(out), picture(panels_of(found, record, lang), form))
    return answer_of(found, record)


def report(
    *runs: Target,
    out: str | None = None,
    format: Literal["html", "md"] = "html",
    config: str | None = None,
    hardware: str | None = None,
    lang: str = "en",
    **known: object,
) -> Answer[Path]:
    """The page of a run or a log, or a comparison of several, as one file that opens anywhere; `out` is the first run's
    name with .html unless given. `format="md"` is text for a pull request."""
    from nanolens.page.report import report as page_of

    records = [open_target(run, config, hardware, **known) for run in runs]
    body = page_of(records, lang, format)
    path = out or f"{source_name(None, records[0].name)}{'-and-others' if len(records) > 1 else ''}.{format}"
    words = msg("{file:code}: {size:bytes}; it opens from disk and needs no network", path, len(body))
    return _file_answer(path, body, words)


def plot(
    *runs: Target,
    out: str | None = None,
    x: str = "step",
    log_x: bool = False,
    log_y: bool = False,
    smooth: int | None = None,
    title: str = "",
    lang: str = "en",
) -> Answer[Path]:
    """The loss of one or more runs as a picture: PNG, SVG or PDF, by the ending of `out` (default: loss.png)."""
    from nanolens.show.plots import loss_picture, require_picture_name

    path = out or "loss.png"
    form = require_picture_name(path)
    records = [open_target(run) for run in runs]
    body = loss_picture(records, form, x=x, log_x=log_x, log_y=log_y, smooth=smooth, title=title, lang=lang)
    return _file_answer(path, body, msg("{file:code}: {size:bytes}", path, len(body)))


def runs(folder: str | Path | None = None) -> Answer[list[Glance]]:
    """The runs below `runs/` or another folder: progress, loss, speed."""
    from nanolens.record.progress import glances
    from nanolens.show.runs import runs_answer

    return runs_answer(glances(Path(folder) if folder else None), str(folder or RUNS))


def dashboard(
    folder: str | Path | None = None,
    *,
    port: int | None = None,
    lang: str = "en",
    on_ready: Callable[[str], None] = print,
) -> None:
    """Serves the local page of your runs until interrupted; `on_ready` gets its address."""
    from nanolens.page.server import serve

    root = Path(folder) if folder else None
    if root is not None and not root.is_dir():
        root = run_folder(str(root)) or root
    if root is not None and not root.is_dir():
        what = msg("there is no folder named {folder:code}", str(folder))
        raise fault(what, fix=msg("name the folder that contains your runs"))
    serve(root, port, lang, on_ready)


def named(target: Target) -> str:
    """What the command line would say."""
    return str(getattr(target, "source", target))


def open_target(
    target: Target | None, config: str | None = None, hardware: str | None = None, **known: object
) -> RunRecord:
    from nanolens.logs.open import open_run

    return open_run(None if target is None else named(target), config, hardware, options_of(known))


def options_of(known: Mapping[str, object]) -> list[tuple[str, str]]:
    return [(key, as_text(value)) for key, value in known.items()]


def _file_answer(path: str, body: bytes, words: Message) -> Answer[Path]:
    files.write_whole(Path(path), body)
    return lines_answer(Path(path), words, data={"file": path, "bytes": len(body)})


def lines_answer(value: Value, *lines: Text, data: Mapping[str, object], exit_code: int = 0) -> Answer[Value]:
    """An answer of a few lines."""
    return Answer(value, lambda lang: [TextBlock(line, "literal") for line in lines], lambda lang: data, exit_code)
