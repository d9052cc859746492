"""Which branches a question needs, and what they cost, before anything is run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nanoscope.analysis.probe_schedule import Rest, played, rest_of
from nanoscope.config.fields import Config
from nanoscope.message import Message, msg
from nanoscope.sizing import flops_per_token, shape_of

BRANCH_FRAC = 0.025  # length of a branch, as a share of the run
FEWEST, MOST = 20, 500  # updates in a branch
SCORED_FRAC = 0.2  # of a branch's cost, for the windows that it is judged on
FEWEST_WINDOWS, MOST_WINDOWS = 64, 1024
EVAL_ITERS = 4  # batches that a branch evaluates by itself, for its own record
FORWARD = 1 / 3  # cost of evaluating a batch, in updates
NUMBERS_UPDATES = 6  # of the unchanged branch that shows which layers move
NOISE_BATCHES = 24  # gradients behind the noise scale
WINDOWS_FRAC = 0.02  # forward passes of a question that only looks, as a share of the run
WIDER = 2  # times the width, in the branch that asks for the size
LARGER = 4  # times the batch
HIGHER = (2.0, 8.0, 32.0)  # times the rate; the larger ones where the first does no harm
TIMED = 6  # updates of each batch that are timed
USUALLY_SLOWER = 3.0  # an update with four times the batch, before it has been timed


@dataclass(frozen=True)
class Branch:
    """A branch that is to be run. Its cost is in updates of the parent."""

    name: str
    words: Message
    updates: int
    changes: dict[str, Any]
    cost: float
    is_wider: bool = False
    for_the_rest: dict[str, Any] = field(default_factory=dict)  # the settings that make this change for the rest of the run


@dataclass(frozen=True)
class Planned:
    question: str
    branches: tuple[Branch, ...] = ()
    looks: float = 0.0  # cost of what is only evaluated
    not_asked: Message | None = None

    @property
    def cost(self) -> float:
        return self.looks + sum(branch.cost for branch in self.branches)


@dataclass(frozen=True)
class Frame:
    """What all branches of one probing share."""

    config: Config
    step: int
    updates: int  # in a branch
    windows: int  # of the val split, that all branches are judged on
    rest: Rest  # that is played by all branches but the two that ask whether the rate is too high at the end
    own: Rest  # the run's own
    vocab_size: int | None = None
    notes: tuple[Message, ...] = field(default=())


def frame_of(config: Config, step: int, vocab_size: int | None = None, most_updates: int | None = None) -> Frame:
    """`most_updates` cuts the branches to a budget."""
    updates = min(MOST, max(FEWEST, round(BRANCH_FRAC * config.max_iters)))
    if most_updates is not None:
        updates = max(2, min(updates, most_updates))
    own = rest_of(config, step)
    rest = own
    if own.is_over and own.rate < 0.5 * config.learning_rate:
        # With the rate at its end nothing changes any more, whatever is changed: the branches get a last piece of schedule to play.
        rest = Rest(config.learning_rate, own.rate, 1.0, own.updates, True)
    sequences = config.batch_size * config.gradient_accumulation_steps
    windows = min(MOST_WINDOWS, max(FEWEST_WINDOWS, round(SCORED_FRAC * updates * sequences / FORWARD)))
    return Frame(config, step, updates, windows, rest, own, vocab_size)


def evaluation_cost(frame: Frame) -> float:
    accumulation, size = frame.config.gradient_accumulation_steps, frame.config.batch_size
    return FORWARD * (frame.windows / (accumulation * size) + 2 * min(EVAL_ITERS, frame.config.eval_iters) / accumulation)


def branch(
    frame: Frame, name: str, words: Message, changes: dict[str, Any], updates: int | None = None, weight: float = 1.0, *,
    times: float = 1.0, end: float | None = None, rest: Rest | None = None, is_wider: bool = False, longer: float = 1.0,
    really: dict[str, Any] | None = None,
) -> Branch:  # fmt: skip
    """`weight`: what an update of it costs, in updates of the parent. `longer`: how many updates it would do for the rest of the run, over
    those that are left; `really`: the settings for that, where they differ from the branch's."""
    count, rest = frame.updates if updates is None else updates, rest or frame.rest
    config, step = frame.config, frame.step
    schedule = played(config, step, count, rest, times=times, end=end)
    whole = played(config, step, max(2, round(rest.updates * longer)), rest, times=times, end=end)
    evaluated = evaluation_cost(frame) * (weight if is_wider else 1.0)
    really = changes if really is None else really
    return Branch(name, words, count, {**schedule, **changes}, count * weight + evaluated, is_wider, {**whole, **really})


def unchanged(frame: Frame) -> Branch:
    return branch(
        frame, "as-planned", msg("nothing changed: the rest of the schedule, played in {count:count} updates", count=frame.updates), {}
    )


def as_it_stands(frame: Frame) -> Branch:
    """The reference of a run that is over: on at the rate that it ended with."""
    if frame.rest is frame.own:
        return unchanged(frame)
    return branch(frame, "as-it-stands", msg("nothing changed: on at the rate that it ended with"), {}, rest=frame.own)


def to_zero(frame: Frame) -> Branch:
    words = msg("the learning rate falls to zero over {count:count} updates", count=frame.updates)
    return branch(frame, "rate-to-zero", words, {}, end=0.0, rest=frame.own)


def rate_times(frame: Frame, times: float) -> Branch:
    name = f"rate-x{times:g}" if times > 1 else f"rate-over-{1 / times:g}"
    return branch(frame, name, msg("the learning rate {times:times}", times=times), {}, times=times)


def larger_batch(frame: Frame, slower: float) -> Branch:
    """The batch x4 for the time that the unchanged branch takes: `slower` is what an update of it takes, over one of the run. The rate
    follows the square root of the batch, as Adam's should."""
    updates = max(2, round(frame.updates / slower))
    words = msg("the batch x{times:count} and the rate x2, for the same time ({updates:count} updates)", times=LARGER, updates=updates)
    changes = {"batch_size": LARGER * frame.config.batch_size}
    return branch(frame, f"batch-x{LARGER}", words, changes, updates, slower, times=LARGER**0.5, longer=1 / slower)


def smaller_batch(frame: Frame) -> Branch | None:
    """The batch halved at equal tokens."""
    accumulation, size = frame.config.gradient_accumulation_steps, frame.config.batch_size
    words = msg("the batch halved and the rate / 1.4, at equal tokens")
    if accumulation % 2 == 0:
        changes = {"gradient_accumulation_steps": accumulation // 2}
    elif size % 2 == 0:
        changes = {"batch_size": size // 2}
    else:
        return None
    return branch(frame, "batch-half", words, changes, 2 * frame.updates, 0.5, times=0.5**0.5, longer=2.0)


def with_dropout(frame: Frame, dropout: float) -> Branch:
    return branch(frame, f"dropout-{dropout:g}", msg("dropout {value:number}", value=dropout), {"dropout": dropout})


def with_decay(frame: Frame, decay: float) -> Branch:
    return branch(frame, f"weight-decay-{decay:g}", msg("weight decay {value:number}", value=decay), {"weight_decay": decay})


def wider(frame: Frame) -> Branch | None:
    """Twice as wide, grown from the weights at hand so that at first it computes exactly the same. The branch is as long as the others; for
    the rest of the run it would have only as many updates as the same FLOPs allow."""
    config = frame.config
    if config.arch != "gpt2" or config.optimizer != "adamw":
        return None
    ratio = wider_cost(frame)
    changes = {"n_embd": WIDER * config.n_embd, "n_head": WIDER * config.n_head}
    words = msg("twice as wide ({width:count}), grown from these weights", width=WIDER * config.n_embd)
    return branch(frame, f"width-x{WIDER}", words, changes, None, ratio, is_wider=True, longer=1 / ratio)


def wider_cost(frame: Frame) -> float:
    """FLOPs of a token in the wider model, over those in this one."""
    from dataclasses import replace

    config = frame.config
    grown = replace(config, n_embd=WIDER * config.n_embd, n_head=WIDER * config.n_head)
    one, other = (flops_per_token(shape_of(each, frame.vocab_size)).training for each in (config, grown))
    return other / one


def plan(frame: Frame, questions: tuple[str, ...]) -> tuple[Planned, ...]:
    """What each question would run. The unchanged branch is run once, and counted with the first question that needs it."""
    found, has_reference = [], False
    for question in questions:
        each = _planned(frame, question)
        needs = question in ("regularisation", "rate", "batch", "size") and each.not_asked is None
        if needs and not has_reference:
            each = Planned(each.question, (unchanged(frame), *each.branches), each.looks)
            has_reference = True
        found.append(each)
    return tuple(found)


def _planned(frame: Frame, question: str) -> Planned:
    config, look = frame.config, WINDOWS_FRAC * frame.config.max_iters
    match question:
        case "numbers":
            same = Branch("unchanged", msg("nothing changed: the run's own next updates"), NUMBERS_UPDATES, {}, NUMBERS_UPDATES)
            return Planned(question, (same,), 4.0)
        case "where" | "data":
            return Planned(question, (), look)
        case "regularisation":
            off_or_on = with_dropout(frame, 0.0 if config.dropout > 0 else 0.1)
            decay = with_decay(frame, 0.0 if config.weight_decay > 0 else 0.1)
            return Planned(question, (off_or_on, decay))
        case "rate":
            stands = (as_it_stands(frame),) if frame.rest is not frame.own else ()
            return Planned(
                question, (*stands, to_zero(frame), *(rate_times(frame, times) for times in HIGHER))
            )  # or, after the first, halved: that is cheaper
        case "batch":
            up, down = larger_batch(frame, USUALLY_SLOWER), smaller_batch(frame)
            return Planned(question, (up,) if down is None else (up, down), NOISE_BATCHES + TIMED * (1 + USUALLY_SLOWER))
        case "size":
            grown = wider(frame)
            if grown is None:
                return Planned(question, not_asked=msg("only models of arch=gpt2 trained by adamw can be widened in place"))
            return Planned(question, (grown,))
    raise AssertionError(question)
