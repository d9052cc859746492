"""The functions of the Python API that train a model, measure this machine, or turn data and models into files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from nanolens.api import Target, lines_answer, named, options_of
from nanolens.api.run import Run
from nanolens.errors import fault
from nanolens.message import Message, msg
from nanolens.record import step_of
from nanolens.record.store import RunAt, as_typed, find_checkpoint, find_run
from nanolens.show.answer import Answer
from nanolens.show.document import Text

if TYPE_CHECKING:
    from nanolens.convert.exporting import ExportResult
    from nanolens.convert.importing import ImportResult
    from nanolens.data.prepare import PreparedData
    from nanolens.data.prepare.pipeline import OnProgress
    from nanolens.measure.selftest import Check, Report
    from nanolens.measure.sweep import SweepResult
    from nanolens.measure.trying import TryOutcome
    from nanolens.measure.tune import TuneResult
    from nanolens.planning import Plan
    from nanolens.probing import ProbePlan
    from nanolens.probing.judge import ProbeAnswer
    from nanolens.record.events import Event
    from nanolens.record.progress import Progress
    from nanolens.trackers.sender import SendResult
    from nanolens.training.checkpoint import CheckResult

Tell: TypeAlias = "Callable[[Message], None]"


def _quietly(message: object) -> None:
    """Nobody listens to the progress of what is called from Python, unless it is asked for."""


def train(
    source: str | None = None,
    *,
    listeners: Sequence[Callable[[Event], object]] = (),
    quiet: bool = False,
    **settings: object,
) -> Run:
    """Trains as `nanolens train` does and gives the run back: `nanolens.train("quickstart", max_iters=200)`.

    `source` is a preset or a config file, and each further argument a setting by its name. `listeners` are called with
    each event (see `nanolens.record.events`), each in a thread of its own. Unless `quiet`, nanoGPT's lines are printed.
    A mistake raises UserError; a run that failed raises RuntimeError with the reason; Ctrl-C saves and raises
    KeyboardInterrupt. Whatever was trained is on disk then."""
    from nanolens.session.detach import raise_if_signalled
    from nanolens.session.job import plan_job, run_job
    from nanolens.show.lines import LineView

    job = plan_job(source, options_of(settings))

    def views(progress: Progress, folder: Path) -> list[Callable[[Event], object]]:
        lines = LineView(progress, sys.stdout, folder=str(folder), log_interval=job.settings.config.log_interval)
        return [*listeners, *([] if quiet else [lines])]

    ended = run_job(job, views)
    raise_if_signalled(ended.outcome.signal)
    if ended.outcome.why == "failed":
        raise RuntimeError(f"{ended.folder}: {ended.progress.because or ended.outcome.because or 'the run failed'}")
    return Run(ended.folder)


def sample(
    *runs: Target,
    prompt: str = "\n",
    best: bool = False,
    num_samples: int = 1,
    max_new_tokens: int = 500,
    temperature: float = 0.8,
    top_k: int | None = 200,
    top_p: float | None = None,
    seed: int = 1337,
    device: str = "auto",
    arch: str | None = None,
) -> Answer[dict[str, list[str]]]:
    """Text from one or more trained models, from the same prompt and seed; the value is the texts by run.
    `nanolens.load(run)` keeps a model for more than one call."""
    from nanolens.loaded import load

    texts: dict[str, list[str]] = {}
    for run in runs:
        model = load(named(run), best=best, device=device, arch=arch)
        made = model.generate(
            prompt,
            max_new_tokens=max_new_tokens,
            num_samples=num_samples,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
        )
        texts[model.name] = [made] if isinstance(made, str) else made
    lines = [line for name, each in texts.items() for line in ([f"=== {name}", *each] if len(runs) > 1 else each)]
    return lines_answer(texts, *lines, data=texts)


def prepare(
    *sources: str | Path,
    tokenizer: str = "auto",
    vocab_size: int | None = None,
    out: str | Path | None = None,
    text_column: str | None = None,
    dedup: str = "none",
    val_frac: float | None = None,
    shards: int | None = None,
    workers: int | None = None,
    part: str | None = None,
    overwrite: bool = False,
    progress: OnProgress | None = None,
) -> Answer[PreparedData]:
    """Text files, .jsonl, .parquet, folders of them, or a named corpus become tokens: a `dataset` for `train`."""
    from nanolens.data.corpora import fetch, find_corpus
    from nanolens.data.prepare import prepare as prepared_from
    from nanolens.data.prepare.pipeline import PrepareProgress
    from nanolens.show.runs import part_words, prepared_words

    first = Path(sources[0])
    texts: Sequence[str | Path] = sources
    corpus = find_corpus(str(sources[0])) if len(sources) == 1 and not first.exists() else None
    name = (first.resolve().name if first.is_dir() else first.name.split(".")[0]).strip("-") or "stdin"
    if corpus is not None:
        name, say = corpus.name, progress or _quietly
        texts = fetch(corpus, lambda done, total: say(PrepareProgress("download", done, total)), shards)
        tokenizer = corpus.tokenizer if tokenizer == "auto" else tokenizer
        val_frac = corpus.val_frac if val_frac is None else val_frac
    found = prepared_from(
        texts,
        tokenizer,
        Path(out or Path("data") / name),
        vocab_size=vocab_size,
        text_column=text_column,
        dedup=dedup,  # type: ignore[arg-type]
        val_frac=val_frac,
        workers=workers,
        overwrite=overwrite,
        name=name,
        progress=progress,
        part=part,
    )
    lines = prepared_words(found) if part in (None, "join") else [part_words(found, str(part))]
    return lines_answer(found, *lines, data={"folder": str(found.folder), **found.about})


def plan(
    source: str | None = None,
    *,
    hardware: str | None = None,
    budget: str | None = None,
    price: float | None = None,
    difference: float | None = None,
    dataset_tokens: int | None = None,
    val_tokens: int | None = None,
    machines: int = 1,
    network: str = "1Gbit",
    speeds: str | None = None,
    no_measure: bool = False,
    out: str | None = None,
    **settings: object,
) -> Answer[Plan]:
    """What a config would cost and reach; with `budget` ("2h", "1e15flop", "3Btok") the best config for it, and with
    `out` as a config file. To train it: `nanolens.train(**dataclasses.asdict(answer.value.config))`."""
    from nanolens.planning.question import Question, answer, command_of, remember, write_config
    from nanolens.planning.time import asked_ranks
    from nanolens.planning.words import answer_of, config_file

    ranks = asked_ranks(machines, network, speeds) if machines > 1 else None
    question = Question(
        source,
        options_of(settings),
        hardware,
        budget,
        price_per_hour=price,
        difference=difference,
        dataset_tokens=dataset_tokens,
        val_tokens=val_tokens,
        measure=not no_measure,
        ranks=ranks,
    )
    found = answer(question)
    remember(found.plan)
    if out:
        write_config(out, config_file(found))
    return answer_of(found, command_of(found, out), out)


def probe(
    run: Target,
    *,
    question: Sequence[str] | None = None,
    budget: str = "10m",
    plan: bool = False,
    arch: str | None = None,
    tell: Tell = _quietly,
) -> Answer[ProbeAnswer] | Answer[ProbePlan]:
    """What limits the loss of a run, by short branches from a checkpoint, each with one change. `plan` only says what
    would be done and what it would cost."""
    from nanolens import probing
    from nanolens.planning.budget import seconds_named
    from nanolens.probing.judge import QUESTIONS
    from nanolens.probing.words import answer_of, plan_answer

    name, questions, budget_s = named(run), tuple(question or QUESTIONS), seconds_named(budget)
    if plan:
        return plan_answer(probing.plan(name, questions, budget_s, arch))
    return answer_of(probing.probe(name, questions, budget_s, arch, tell))


def sweep(
    source: str | None = None, *, budget: str = "30m", tell: Tell = _quietly, **settings: object
) -> Answer[SweepResult]:
    """A few short runs over a range of settings (`learning_rate="1e-4..1e-2"`), longer for the better ones."""
    from nanolens.measure.sweep import sweep as sweep_of
    from nanolens.measure.sweep import sweep_answer
    from nanolens.planning.budget import seconds_named

    return sweep_answer(sweep_of(source, options_of(settings), seconds_named(budget), tell))


def try_(
    source: str, *, budget: str = "5m", worth: float = 0.01, tell: Tell = _quietly, **settings: object
) -> Answer[TryOutcome]:
    """Is a change a gain? `source` with `settings` against `source` alone, in pairs of runs with the same seed, until
    it is decided (keep, discard) or the budget is over. `try` is a word of Python, hence the underscore."""
    from nanolens.measure.trying import try_answer, try_change
    from nanolens.planning.budget import seconds_named

    return try_answer(try_change(source, options_of(settings), seconds_named(budget), worth, tell))


def tune(
    source: str | None = None,
    *,
    memory: float | None = None,
    try_compile: bool = False,
    tell: Tell = _quietly,
    **settings: object,
) -> Answer[TuneResult]:
    """The fastest micro-batch for a config on this machine, with the same tokens per update. `memory` is in GB."""
    from nanolens.config.load import DEFAULT_PRESET, load
    from nanolens.measure.tune import answer_of, tuned_for

    options, limit = options_of(settings), memory * 1e9 if memory else None
    config = load(source or DEFAULT_PRESET, options).config
    found = tuned_for(config, limit_bytes=limit, try_compile=try_compile, tell=tell)
    words = [f"--{key}={value}" for key, value in options if key != "batch_size"]
    return answer_of(found, " ".join(["nanolens train", *([source] if source else []), *words, "--batch_size=auto"]))


def export(
    run: Target,
    path: str,
    *,
    to: str,
    best: bool = False,
    dtype: str | None = None,
    overwrite: bool = False,
    lang: str = "en",
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> Answer[ExportResult]:
    """A trained model for Hugging Face transformers ("hf"), llama.cpp ("gguf") or nanoGPT ("nanogpt")."""
    from nanolens.convert.exporting import export_model

    done = export_model(named(run), to, path, best=best, dtype=dtype, overwrite=overwrite, on_stage=progress, lang=lang)
    data = {"run": done.name, "path": str(done.path), "dtype": done.dtype, "bytes": done.bytes}
    values = {**data, "what": done.what, "size": done.bytes}
    words = msg("{run:code} exported to {path:code}: {what}, {dtype:code}, {size:bytes}", **values)
    return lines_answer(done, words, *done.notes, *done.uses, data=data)


def import_(
    source: str,
    *,
    out_dir: str | None = None,
    tokenizer: str | None = None,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
    **settings: object,
) -> Answer[ImportResult]:
    """A model from elsewhere as a run. `import` is a word of Python, hence the underscore."""
    from nanolens.convert.importing import import_model

    done = import_model(source, out_dir, options_of(settings), tokenizer, progress)
    name = as_typed(done.run)
    values = {"source": source, "kind": done.kind, "parameters": done.parameters, "step": done.step, "run": name}
    words = msg(
        "{source:code} ({kind}, {parameters:parameters} parameters, step {step:count}) imported as the run {run:code}",
        **values,
    )
    train_on = msg("fine-tune it: {command:code}", f"nanolens train --init_from={name} --dataset=NAME --max_iters=N")
    if done.with_optimizer:
        train_on = msg(
            "continue training, with its optimizer state: {command:code}",
            f"nanolens train --init_from=resume --out_dir={name} --max_iters=N",
        )
    sample_it = msg("sample from it: {command:code}", f"nanolens sample {name}")
    return lines_answer(done, words, *done.notes, sample_it, train_on, data={"run": str(done.run), "step": done.step})


def send(
    target: Target,
    to: str,
    *,
    project: str | None = None,
    name: str | None = None,
    follow: bool = False,
    again: bool = False,
    config: str | None = None,
    hardware: str | None = None,
    progress: Callable[[float, float], None] = lambda done, whole: None,
    **known: object,
) -> Answer[SendResult]:
    """Sends a run, or the log of any trainer, to a tracker: `nanolens.send("quickstart-1", to="tensorboard")`. What it
    already has is not sent again, unless `again`: then it goes out as a new run. `follow` waits for the run to end."""
    from nanolens.trackers.sender import send as send_record
    from nanolens.trackers.sender import sent_words

    sent = send_record(
        named(target),
        to,
        project=project,
        name=name,
        again=again,
        config=config,
        hardware=hardware,
        known=options_of(known),
        follow=follow,
        on_progress=progress,
    )
    return lines_answer(sent, *sent_words(sent), data=asdict(sent), exit_code=1 if sent.complaints else 0)


def verify(run: Target, *, tell: Callable[[CheckResult], None] = _quietly) -> Answer[list[CheckResult]]:
    """Every byte of a run against its manifests; `tell` gets each part as it is checked."""
    from nanolens.show.runs import checked_lines
    from nanolens.training.checkpoint import verify_run

    checks = []
    for checked in verify_run(find_run(named(run)).folder):
        tell(checked)
        checks.append(checked)
    damaged = [checked.what for checked in checks if checked.problems]
    end = msg("everything is intact")
    if damaged:
        end = msg("damaged parts: {count:count}; resuming uses the newest intact checkpoint", len(damaged))
    lines = [line for checked in checks for line in checked_lines(checked)]
    return lines_answer(checks, *lines, end, data={"damaged": damaged}, exit_code=1 if damaged else 0)


def selftest(device: str = "auto", *, tell: Callable[[Check], None] = _quietly) -> Answer[Report]:
    """Checks nanolens on this machine: precision, resume, memory, speed; five minutes."""
    from nanolens.measure.selftest import selftest as checked
    from nanolens.show.runs import check_line, machine_lines

    found = checked(device, tell)
    failed = [check.name for check in found.checks if check.state == "failed"]
    end = msg("all checks passed on {device:code}", found.device)
    if failed:
        end = msg("failed: {names}; please paste everything above into an issue", failed)
    lines: list[Text] = [check_line(check) for check in found.checks]
    data = {"device": found.device, "failed": [str(name) for name in failed]}
    return lines_answer(found, *lines, "", *machine_lines(found), "", end, data=data, exit_code=1 if failed else 0)


def stop(run: Target, *, wait: float = 300.0) -> Answer[bool]:
    """Asks a run to save and stop. The value is True once it has ended, False where it is busy after `wait` seconds."""
    from nanolens.session.detach import stop as ask_to_stop

    folder = find_run(named(run), or_starting=True).folder
    has_ended = ask_to_stop(folder, wait)
    newest = find_checkpoint(RunAt(folder))
    step = step_of(newest) if newest is not None else None
    name, resume = folder.name, f"nanolens train --init_from=resume --out_dir={folder}"
    lines = [msg("{run} stopped before its first checkpoint", name)]
    if not has_ended:
        lines = [
            msg("{run} was asked to stop and is still busy after {waited:seconds}; it will stop on its own", name, wait)
        ]
    elif step is not None:
        saved = msg("{run} stopped; step {step:count} is saved", name, step)
        lines = [saved, msg("continue with {command:code}", resume)]
    return lines_answer(has_ended, *lines, data={"has_ended": has_ended, "step": step}, exit_code=0 if has_ended else 1)


def watch(run: Target | None = None, *, command: Sequence[str] = (), tell: Tell = _quietly) -> Run:
    """Prints nanoGPT's lines of a run while it trains, until it ends. Or runs `command`, any trainer, and records it:
    its output goes to standard output, and `tell` gets what is certainly wrong as soon as it is."""
    from nanolens.logs.watch import watch_others
    from nanolens.record.progress import Watching
    from nanolens.show.lines import follow_lines

    if command:
        return Run(watch_others(command, tell)[1])
    if run is None:
        raise fault(msg("which run?"), fix=msg("name one: {command:code} lists them", "nanolens runs"))
    folder = find_run(named(run)).folder
    follow_lines(Watching(folder))
    return Run(folder)
