"""What a config would cost and reach, before it costs anything: every number with its source, and warnings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from nanolens.config.fields import Config
from nanolens.config.load import Preset
from nanolens.diagnosis.rules import all_findings
from nanolens.facts import laws
from nanolens.facts.case import Case, Outlook
from nanolens.facts.finding import Finding
from nanolens.facts.references import Reference, corpus_named, published_runs
from nanolens.message import Message, msg
from nanolens.planning.figures import TABLES, DataFacts, MachineFacts, PlanFigure, PlanInputs, PlanSection, row, unknown
from nanolens.planning.memory import disk_bytes, disk_rows, largest_micro_batch, memory_rows, peak_memory, usable_memory
from nanolens.planning.time import TimePlan, rank_sections, time_plan, time_rows
from nanolens.record.run import Known
from nanolens.sizing.shape import Shape, flops_per_token, parameters, shape_of

ADDITIONS: tuple[Callable[[PlanInputs], Iterator[PlanSection | Finding]], ...] = (rank_sections,)
"""Further sections, shown after Time, and further warnings, shown last."""


@dataclass(frozen=True)
class Plan:
    config: Config
    shape: Shape
    data: DataFacts
    machine: MachineFacts
    sections: tuple[PlanSection, ...]
    warnings: tuple[Finding, ...]  # what the rules of diagnosis/rules say of this config
    notes: tuple[Message, ...] = ()

    @property
    def rows(self) -> list[PlanFigure]:
        return [row for section in self.sections for row in section.rows]

    def row(self, key: str) -> PlanFigure:
        return next(row for row in self.rows if row.key == key)

    def value(self, key: str) -> float | None:
        row = self.row(key)
        return row.value if row.is_known else None


def make_plan(
    config: Config,
    data: DataFacts,
    machine: MachineFacts,
    *,
    preset: Preset | None = None,
    price_per_hour: float | None = None,
    difference: float | None = None,
    notes: tuple[Message, ...] = (),
) -> Plan:
    """`preset`: where the config is exactly that one; `difference` in val loss: the smallest that is to be seen."""
    shape = shape_of(config, data.vocab_size)
    asked = PlanInputs(config, shape, data, machine, time_plan(config, shape, machine))
    added = [each for addition in ADDITIONS for each in addition(asked)]
    sections = (
        PlanSection("model", msg("Model"), tuple(_model_rows(shape))),
        PlanSection("data", msg("Data"), tuple(_data_rows(asked))),
        PlanSection("optimisation", msg("Batch and learning rate"), tuple(_optimisation_rows(asked))),
        PlanSection("memory", msg("Memory"), tuple(memory_rows(config, shape, machine))),
        PlanSection("time", msg("Time"), tuple(time_rows(asked, price_per_hour))),
        *(each for each in added if isinstance(each, PlanSection)),
        PlanSection("disk", msg("Disk"), tuple(disk_rows(config, shape))),
        PlanSection("loss", msg("Loss"), (_expected_loss(asked, preset),)),
    )
    # The same rules that diagnose the run afterwards, the surest first.
    found = [each for each in all_findings(case_of(asked, difference)) if isinstance(each, Finding)]
    warnings = (
        *sorted(found, key=lambda each: each.sureness == "possible"),
        *(each for each in added if isinstance(each, Finding)),
    )
    return Plan(config, shape, data, machine, sections, warnings, notes)


def case_of(asked: PlanInputs, difference: float | None = None) -> Case:
    data, machine = asked.data, asked.machine
    facts = {
        "dataset": data.name,
        "dataset_tokens": data.train_tokens,
        "val_tokens": data.val_tokens,
        "vocab_size": asked.shape.vocab_size,
        "unigram_nats": data.unigram_nats,
        "bytes_per_token": data.bytes_per_token,
        "hardware": machine.device.name if machine.device is not None else "cpu" if machine.kind == "cpu" else None,
        "devices": machine.count,
        "dtype": machine.dtype,
    }
    where = data.folder or data.name
    known = {key: Known(value, "given", where) for key, value in facts.items() if value is not None}
    return Case.of_config(asked.config, known, name=data.name, outlook=_outlook(asked, difference))


def _outlook(asked: PlanInputs, difference: float | None) -> Outlook:
    config, shape, machine, times = asked.config, asked.shape, asked.machine, asked.times
    may_chunk = not config.chunked_head and machine.calibration is None
    eval_s = eval_frac = 0.0
    if isinstance(times, TimePlan):
        eval_s, total_s = times.parts["eval_s"].value, times.parts["total_s"].value
        eval_frac = eval_s / total_s if total_s > 0 and times.evaluations > 2 else 0.0
    return Outlook(
        peak_bytes=peak_memory(config, shape, machine),
        usable_bytes=usable_memory(machine),
        largest_micro_batch=largest_micro_batch(config, shape, machine),
        largest_chunked=largest_micro_batch(config, shape, machine, chunked=True) if may_chunk else None,
        disk_bytes=disk_bytes(config, shape),
        free_disk_bytes=machine.free_disk_bytes,
        eval_frac=eval_frac,
        eval_s=eval_s,
        difference=difference,
    )


def _model_rows(shape: Shape) -> Iterator[PlanFigure]:
    counted, flops = parameters(shape), flops_per_token(shape)
    yield row("parameters", counted.total)
    for part, count in counted.by_part.items():
        yield row("parameters_" + part.replace(" ", "_").replace("-", "_"), count)
    yield row("flops_per_token", flops.training)
    yield row("flops_attention", flops.attention)


def _data_rows(asked: PlanInputs) -> Iterator[PlanFigure]:
    config, data, seen = asked.config, asked.data, asked.tokens
    flops = seen * flops_per_token(asked.shape).training
    yield row("tokens_per_update", config.tokens_per_update)
    yield row("tokens", seen, [config.max_iters])
    yield row("flops", flops)
    yield row("tokens_per_parameter", seen / parameters(asked.shape).total, _best_ratio(flops))
    if data.train_tokens is None:
        yield unknown("epochs", msg("the size of the data is not known: {because}", data.origin))
        return
    epochs = seen / data.train_tokens
    yield row("epochs", epochs, [data.train_tokens, data.origin])
    yield row("repetition_worth", laws.value_of_tokens(epochs))


def _best_ratio(flops: float) -> tuple[float, float]:
    """Tokens per parameter that the published fits find best for this compute (least and most of the three)."""
    if flops <= 0:
        return (20.0, 20.0)
    found = []
    for law in laws.LOSS_LAWS:
        share = (law.alpha * law.A / (law.beta * law.B)) ** (1 / (law.alpha + law.beta))
        best_N = share * (flops / 6) ** (law.beta / (law.alpha + law.beta))
        found.append(flops / 6 / best_N**2)
    return min(found), max(found)


def _optimisation_rows(asked: PlanInputs) -> Iterator[PlanFigure]:
    config, seen, N = asked.config, asked.tokens, parameters(asked.shape).total
    if not seen:
        yield unknown("suggested_batch", msg("the run has no updates"))
        return
    law, width = msg("Step Law (arXiv 2503.04715), within a factor of 2 either way"), laws.STEP_LAW_RANGE
    if laws.is_outside_step_law(N, seen):
        width *= 2
        law = msg(
            "Step Law (arXiv 2503.04715), far outside the sizes and lengths it was fitted on: an order of magnitude "
            "only"
        )
    best, critical = laws.two_digits(laws.step_law_batch(seen)), laws.two_digits(laws.critical_batch(seen))
    yield row("suggested_batch", best, law, low=best / width, high=best * width)
    yield row("critical_batch", critical, low=critical / 2, high=critical * 2)
    yield row("batch_over_critical", config.tokens_per_update / critical)
    yield row("learning_rate", config.learning_rate)
    if config.optimizer == "adamw":
        rate = laws.suggested_rate(N, seen, config.tokens_per_update)
        yield row("suggested_rate", rate, law, low=rate / width, high=rate * width)
    if config.decay_lr:
        yield row("warmup_share", config.warmup_iters / max(1, config.max_iters))
        yield row("decay_ends_share", config.decay_ends / max(1, config.max_iters))
        yield row("final_rate_share", config.min_lr / config.learning_rate if config.learning_rate else math.nan)


# --- the loss at the end


@dataclass(frozen=True)
class Anchor:
    """A run whose end is known, from figures.toml."""

    corpus: str
    N: float
    D: float
    loss: float
    spread: float
    source: str


LOSS_ANCHORS = msgspec.convert(TABLES["anchors"], tuple[Anchor, ...])
SAME_LENGTH = 0.02  # so much longer or shorter, as a share, is still the same run
PER_E_FOLD = 0.03
"""Nats by which the range widens for each factor e of parameters or tokens away from the anchor: between 5,000 and
19,560 updates of llm.c's run (1.4 e-folds) the three laws err by 0.01 to 0.02 and differ from each other by as much."""


def _expected_loss(asked: PlanInputs, preset: Preset | None = None) -> PlanFigure:
    """The nearest of three sources: the very preset was run before; a run of this shape, corpus and length is
    published; or the corpus is web text in GPT-2's tokens, where published laws give differences from a known run. For
    any other corpus a fifth of the run and `nanolens forecast` know more than any law, and that is what is said."""
    config, data = asked.config, asked.data
    if preset is not None and preset.val_loss is not None and preset.val_loss_source is not None:
        what, how = msg("val loss reached by this preset"), msg("this preset: {source}", preset.val_loss_source)
        end = preset.val_loss
        return row("final_loss", end, how, "measured", end - 0.03, end + 0.03, what=what)
    if not asked.tokens:
        return unknown("final_loss", msg("the run has no updates"))
    corpus = corpus_named(f"{data.name} {'char' if data.is_char else ''}")
    known = corpus and _known_run(config, asked.shape, corpus.name)
    if known:
        how = msg("a reference run of this shape and length: {source}", known.source)
        end, margin = known.end_val or 0.0, 2 * known.spread
        return row("final_loss", end, how, low=end - margin, high=end + margin)
    anchor = next((each for each in LOSS_ANCHORS if corpus is not None and each.corpus == corpus.name), None)
    if anchor is None or data.is_char:
        because = msg(
            "there is no reference run on this corpus; after about {steps:count update|updates}, {command:code} is "
            "more reliable than any scaling law",
            max(1, config.max_iters // 5),
            "nanolens forecast RUN",
        )
        return unknown("final_loss", because)
    worth = laws.worth_of_tokens(asked.tokens, data.train_tokens) if data.train_tokens else float(asked.tokens)
    loss, low, high = loss_from(anchor, parameters(asked.shape).total, worth, config.tokens_per_update)
    how = msg(
        "differences by three published scaling laws, from {anchor}; batch and repetition count as lost tokens, "
        "the learning rate is assumed to be well chosen",
        anchor.source,
    )
    return row("final_loss", loss, how, low=low, high=high, kind="rough_nats")


def _known_run(config: Config, shape: Shape, corpus: str) -> Reference | None:
    """A known run with this shape, batch and length, to its end."""
    if config.arch != "gpt2" or config.optimizer != "adamw" or config.init_from != "scratch":
        return None
    form = (corpus, shape.n_layer, shape.n_embd, shape.block_size, config.tokens_per_update)
    for run in published_runs():
        is_of_this_form = form == (run.corpus, run.n_layer, run.n_embd, run.block_size, run.tokens_per_update)
        is_as_long = abs(config.max_iters / (run.end_step or math.inf) - 1) <= SAME_LENGTH
        if is_of_this_form and is_as_long and run.end_val is not None:
            return run
    return None


def loss_from(anchor: Anchor, N: float, tokens: float, tokens_per_update: float) -> tuple[float, float, float]:
    """(expected, low, high) of a model of N parameters after so many fresh tokens."""
    # A batch beyond the critical one costs tokens; the runs behind the laws had batches up to it.
    tokens *= min(1.0, 2 / laws.tokens_wasted(tokens_per_update, laws.critical_batch(tokens)))
    losses = [anchor.loss + law.loss(N, tokens) - law.loss(anchor.N, anchor.D) for law in laws.LOSS_LAWS]
    away = abs(math.log(N / anchor.N)) + abs(math.log(tokens / anchor.D))
    margin = anchor.spread + PER_E_FOLD * away
    return losses[0], min(losses) - margin, max(losses) + margin


def web_text_loss(corpus: str | None, N: float, tokens: float, tokens_per_update: float) -> tuple[float, float]:
    """(low, high) on that corpus, or on any of the web texts whose runs are known where it is not named."""
    anchors = [each for each in LOSS_ANCHORS if each.corpus == corpus] or LOSS_ANCHORS
    ranges = [loss_from(anchor, N, tokens, tokens_per_update) for anchor in anchors]
    return min(low for _, low, _ in ranges), max(high for _, _, high in ranges)
