"""What a branch is, which branches a question would run, and what they cost, before anything is run.

Much of the loss at a high learning rate is only its noise, and a schedule that is still to come will remove
it anyway. So no branch is compared with the run as it stands: the branch and the unchanged one both play the rest of
their schedule, from the learning rate of now to that of the end, in the few updates that a probe has."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from nanolens.config.fields import Config
from nanolens.message import Message, msg
from nanolens.sizing.schedule import lr_at, schedule_of
from nanolens.sizing.shape import flops_per_token, shape_of

Settings: TypeAlias = dict[str, Any]  # values of a Config by name, of whatever type each has

QUESTION_FRAC = 0.145
"""Of the run, for a question; its branches get as long as that allows: a gain shows the later the better."""
FEWEST_BRANCH_UPDATES, MOST_BRANCH_UPDATES = 20, 500
SCORED_FRAC = 0.4  # of a branch's cost, for the windows that it is judged on
FEWEST_WINDOWS, MOST_WINDOWS = 128, 1024
EVAL_ITERS = 2  # batches that a branch evaluates by itself, for its own record
FORWARD = 1 / 3  # cost of evaluating a batch, in updates
WINDOWS_FRAC = 0.05  # forward passes of a question that only looks, as a share of the run
LEAST_REST_FRAC = 0.05  # of the run; with less left to do it counts as finished
MORE_FRAC = 0.25  # so much longer a finished run might go on, as a share of what it was
NUMBERS_UPDATES = 6  # of the unchanged branch that shows which layers move
NOISE_BATCHES = 24  # gradients behind the noise scale
WIDER = 2  # times the width, in the branch that asks for the size
LARGER_BATCH = 4  # times the batch
HIGHER = (2.0, 16.0)  # times the learning rate; the second where the first does no harm
ENDS_LOW = 0.3  # of the present learning rate: a schedule that ends below takes its noise away by itself
TIMED = 6  # updates of each batch that are timed
USUALLY_SLOWER = 3.0  # an update with four times the batch, before it has been timed


@dataclass(frozen=True)
class RemainingSchedule:
    """The rest of a schedule: at `lr`, then falling to `end` over the last `decay_frac` of `updates`."""

    lr: float
    end: float
    decay_frac: float
    updates: int
    is_over: bool  # the run has done what it was asked to do, and its learning rate stays what it is

    def times(self, factor: float) -> RemainingSchedule:
        return replace(self, lr=self.lr * factor, end=self.end * factor)


@dataclass(frozen=True)
class Frame:
    """What the branches of a question share."""

    config: Config
    step: int
    rest: RemainingSchedule  # of all branches but the two that ask whether the learning rate is too high at the end
    own: RemainingSchedule  # the run's own
    vocab_size: int | None
    allowed: float  # cost of a question, in updates
    least: int  # updates in a branch, whatever is allowed
    updates: int = FEWEST_BRANCH_UPDATES  # in a branch

    @property
    def sequences(self) -> int:
        """In an update."""
        return self.config.batch_size * self.config.gradient_accumulation_steps

    @property
    def windows(self) -> int:
        """Of the val split, that all branches are judged on."""
        return min(MOST_WINDOWS, max(FEWEST_WINDOWS, round(SCORED_FRAC * self.updates * self.sequences / FORWARD)))

    @property
    def evaluation_cost(self) -> float:
        batches = 2 * min(EVAL_ITERS, self.config.eval_iters)
        return FORWARD * (self.windows / self.sequences + batches / self.config.gradient_accumulation_steps)

    @property
    def may_fall_further(self) -> bool:
        """Whether a fall of the learning rate to zero could win anything that the run's own schedule does not."""
        return self.own.end > ENDS_LOW * self.own.lr

    @property
    def wider_cost(self) -> float:
        """FLOPs of a token in the wider model, over those in this one."""
        one, other = (shape_of(each, self.vocab_size) for each in (self.config, replace(self.config, **widths(self))))
        return flops_per_token(other).training / flops_per_token(one).training


@dataclass(frozen=True)
class Branch:
    """A branch that is to be run. Its cost is in updates of the parent."""

    name: str
    words: Message
    updates: int
    changes: Settings
    cost: float
    cause: str = ""  # that a gain would show; of judge.CAUSES
    is_wider: bool = False
    for_the_rest: Settings = field(default_factory=dict)  # that make this change for the rest of the run


@dataclass(frozen=True)
class QuestionPlan:
    question: str
    frame: Frame
    branches: tuple[Branch, ...] = ()
    looks: float = 0.0  # cost of what is only evaluated
    not_asked: Message | None = None

    @property
    def cost(self) -> float:
        return self.looks + sum(branch.cost for branch in self.branches)


def frame_of(config: Config, step: int, vocab_size: int | None = None, allowed: float | None = None) -> Frame:
    """`allowed` cuts the questions to a budget."""
    rest = own = rest_of(config, step)
    if own.is_over and own.lr < 0.5 * config.learning_rate:
        # With the learning rate at its end nothing changes any more, whatever is changed: the branches get a last piece
        # of schedule to play.
        rest = RemainingSchedule(config.learning_rate, own.lr, 1.0, own.updates, True)
    usual = QUESTION_FRAC * config.max_iters
    cost, least = (usual, FEWEST_BRANCH_UPDATES) if allowed is None else (min(usual, allowed), 2)
    return Frame(config, step, rest, own, vocab_size, cost, least)


def rest_of(config: Config, step: int) -> RemainingSchedule:
    left = config.max_iters - step
    if left < LEAST_REST_FRAC * config.max_iters:
        lr = lr_at(config, step)
        return RemainingSchedule(lr, lr, 0.0, max(1, round(MORE_FRAC * config.max_iters)), True)
    end = lr_at(config, config.max_iters)
    begins = max(step, schedule_of(config).decay_begins) if config.decay_lr else config.max_iters
    lr = lr_at(config, max(step, config.warmup_iters)) if config.decay_lr else config.learning_rate
    return RemainingSchedule(lr, min(end, lr), max(0.0, min(1.0, (config.max_iters - begins) / left)), left, False)


def compressed_schedule(config: Config, step: int, updates: int, rest: RemainingSchedule) -> Settings:
    """Settings under which a branch at `step` plays that rest in `updates` updates."""
    first = max(rest.lr, rest.end, 1e-30)
    return {
        "decay_lr": True,
        "schedule": "wsd",  # constant, then linear: with a share of 1 linear from the start
        "warmup_iters": step,
        "lr_decay_iters": step + updates,
        "max_iters": step + updates,
        "decay_frac": rest.decay_frac * updates / (step + updates),
        "learning_rate": first,
        "min_lr": rest.end,
        "matrix_learning_rate": config.matrix_learning_rate * first / (config.learning_rate or math.inf),
    }


# --- what each question would run


def plan(frame: Frame, questions: Sequence[str]) -> tuple[QuestionPlan, ...]:
    """An unchanged branch is run once, and counted with the first question that needs one of its length."""
    found: list[QuestionPlan] = []
    counted: set[str] = set()
    for question in questions:
        each = planned(_lengthened(frame, question), question)
        found.append(replace(each, branches=tuple(branch for branch in each.branches if branch.name not in counted)))
        counted.update(branch.name for branch in each.branches)
    return tuple(found)


def _lengthened(frame: Frame, question: str) -> Frame:
    """With branches as long as the question may cost."""

    def cost(updates: int) -> float:
        return planned(replace(frame, updates=updates), question).cost

    lengths = range(frame.least, MOST_BRANCH_UPDATES + 1)
    return replace(frame, updates=lengths[max(0, bisect_right(lengths, frame.allowed, key=cost) - 1)])


def planned(frame: Frame, question: str) -> QuestionPlan:
    match question:
        case "numbers":
            return QuestionPlan(question, frame, (own_continuation(),), 4.0)
        case "where" | "data":
            return QuestionPlan(question, frame, (), WINDOWS_FRAC * frame.config.max_iters)
        case "regularisation":
            return QuestionPlan(question, frame, (unchanged(frame), *regularised(frame)))
        case "lr":  # at most; what the first ones show decides about the others
            stands = (as_it_stands(frame),) if frame.rest is not frame.own else ()
            zero = (to_zero(frame),) if frame.may_fall_further else ()
            higher = (rate_times(frame, times) for times in HIGHER)
            return QuestionPlan(question, frame, (unchanged(frame), *stands, *zero, *higher))
        case "batch":
            branches = (unchanged(frame), larger_batch(frame, USUALLY_SLOWER), *smaller_batch(frame))
            return QuestionPlan(question, frame, branches, NOISE_BATCHES + TIMED * (1 + USUALLY_SLOWER))
        case "size" if frame.config.arch == "gpt2" and frame.config.optimizer == "adamw":
            return QuestionPlan(question, frame, (unchanged(frame), wider(frame)))
        case "size":
            because = msg("only models with arch=gpt2 trained by adamw can be widened in place")
            return QuestionPlan(question, frame, not_asked=because)
    raise AssertionError(question)


def branch(
    frame: Frame,
    name: str,
    words: Message,
    cause: str = "",
    changes: Settings | None = None,
    *,
    rest: RemainingSchedule | None = None,
    updates: int | None = None,
    weight: float = 1.0,
    longer: float = 1.0,
) -> Branch:
    """`weight`: what an update of it costs, in updates of the parent. `longer`: how many updates it would do for the
    rest of the run, over those that are left."""
    count, rest = updates or frame.updates, rest or frame.rest
    now, later = (
        compressed_schedule(frame.config, frame.step, each, rest) | (changes or {})
        for each in (count, max(2, round(rest.updates * longer)))
    )
    return Branch(name, words, count, now, count * weight + frame.evaluation_cost, cause, for_the_rest=later)


def own_continuation() -> Branch:
    words = msg("the run's own next updates")
    return Branch("unchanged", words, NUMBERS_UPDATES, {}, NUMBERS_UPDATES)


def unchanged(frame: Frame) -> Branch:
    words = msg("unchanged: the rest of the schedule, compressed into {count:count update|updates}", frame.updates)
    return branch(frame, f"as-planned-{frame.updates}", words)


def as_it_stands(frame: Frame) -> Branch:
    """The reference of a run that is over: on at the learning rate that it ended with."""
    if frame.rest is frame.own:
        return unchanged(frame)
    words = msg("unchanged: continue at the final learning rate")
    return branch(frame, f"as-it-stands-{frame.updates}", words, rest=frame.own)


def regularised(frame: Frame) -> tuple[Branch, Branch]:
    """Dropout and weight decay: each off where it is on, on where it is off."""
    dropout, decay = (0.0 if value > 0 else 0.1 for value in (frame.config.dropout, frame.config.weight_decay))
    too = {0.0: "too_high", 0.1: "too_low"}
    words = msg("dropout {value:number}", dropout), msg("weight decay {value:number}", decay)
    return (
        branch(frame, f"dropout-{dropout:g}", words[0], f"dropout_{too[dropout]}", {"dropout": dropout}),
        branch(frame, f"weight-decay-{decay:g}", words[1], f"decay_{too[decay]}", {"weight_decay": decay}),
    )


def to_zero(frame: Frame) -> Branch:
    words = msg("the learning rate decays to zero over {count:count update|updates}", frame.updates)
    return branch(frame, "lr-to-zero", words, "lr_too_high", rest=replace(frame.own, end=0.0, decay_frac=1.0))


def rate_times(frame: Frame, times: float) -> Branch:
    name, cause = f"lr-x{times:g}", "lr_too_low"
    if times < 1:
        name, cause = f"lr-over-{1 / times:g}", "lr_too_high_all_along"
    return branch(frame, name, msg("learning rate {times:times}", times), cause, rest=frame.rest.times(times))


def larger_batch(frame: Frame, slower: float) -> Branch:
    """The batch x4 for the time that the unchanged branch takes: `slower` is what an update of it takes, over one of
    the run. The learning rate follows the square root of the batch, as Adam's should."""
    updates = max(2, round(frame.updates / slower))
    words = msg(
        "batch x{times:count} and learning rate x2, for the same time ({updates:count update|updates})",
        LARGER_BATCH,
        updates,
    )
    name, cause, changes = (
        f"batch-x{LARGER_BATCH}",
        "batch_too_small",
        {"batch_size": LARGER_BATCH * frame.config.batch_size},
    )
    rest, longer = frame.rest.times(LARGER_BATCH**0.5), 1 / slower
    return branch(frame, name, words, cause, changes, rest=rest, updates=updates, weight=slower, longer=longer)


def smaller_batch(frame: Frame) -> tuple[Branch, ...]:
    """The batch halved at equal tokens, where it can be."""
    keys = ("gradient_accumulation_steps", "batch_size")
    changes = next(({key: size // 2} for key in keys if (size := getattr(frame.config, key)) % 2 == 0), None)
    if changes is None:
        return ()
    words = msg("batch halved and learning rate / 1.4, at equal tokens")
    name, cause, rest, updates = "batch-half", "batch_too_large", frame.rest.times(0.5**0.5), 2 * frame.updates
    return (branch(frame, name, words, cause, changes, rest=rest, updates=updates, weight=0.5, longer=2.0),)


def wider(frame: Frame) -> Branch:
    """Twice as wide, grown from the weights at hand so that at first it computes exactly the same. The branch is as
    long as the unchanged one; for the rest of the run it would have only as many updates as the same FLOPs allow. As
    each channel is there twice, an update of the same rate does twice as much: the branch has half the rate, so that
    what it wins is won by the room and not lost by the noise."""
    changes, ratio = widths(frame), frame.wider_cost
    words = msg("twice as wide ({width:count}), grown from these weights", changes["n_embd"])
    half = frame.rest.times(1 / WIDER)
    grown = branch(frame, f"width-x{WIDER}", words, "model_too_small", changes, rest=half, weight=ratio)
    updates = max(2, round(frame.rest.updates / ratio))
    for_the_rest = {**changes, **compressed_schedule(frame.config, frame.step, updates, frame.rest)}
    cost = frame.updates * ratio + frame.evaluation_cost * ratio
    return replace(grown, cost=cost, is_wider=True, for_the_rest=for_the_rest)


def widths(frame: Frame) -> Settings:
    return {"n_embd": WIDER * frame.config.n_embd, "n_head": WIDER * frame.config.n_head}
