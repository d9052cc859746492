"""Which branches a question needs, and what they cost, before anything is run."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import Any

from nanolens.analysis.probe_schedule import Rest, played, rest_of
from nanolens.config.fields import Config
from nanolens.message import Message, msg
from nanolens.sizing import flops_per_token, shape_of

QUESTION_FRAC = 0.145  # of the run, for a question; its branches get as long as that allows: a gain shows the later the better
FEWEST, MOST = 20, 500  # updates in a branch
SCORED_FRAC = 0.4  # of a branch's cost, for the windows that it is judged on
FEWEST_WINDOWS, MOST_WINDOWS = 128, 1024
EVAL_ITERS = 2  # batches that a branch evaluates by itself, for its own record
FORWARD = 1 / 3  # cost of evaluating a batch, in updates
NUMBERS_UPDATES = 6  # of the unchanged branch that shows which layers move
NOISE_BATCHES = 24  # gradients behind the noise scale
WINDOWS_FRAC = 0.05  # forward passes of a question that only looks, as a share of the run
WIDER = 2  # times the width, in the branch that asks for the size
LARGER = 4  # times the batch
HIGHER = (2.0, 16.0)  # times the rate; the second where the first does no harm
ENDS_LOW = 0.3  # of the present rate: a schedule that ends below takes the noise of the rate away by itself
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
class Frame:
    """What the branches of a question share."""

    config: Config
    step: int
    rest: Rest  # that is played by all branches but the two that ask whether the rate is too high at the end
    own: Rest  # the run's own
    vocab_size: int | None
    allowed: float  # cost of a question, in updates
    least: int  # updates in a branch, whatever is allowed
    updates: int = FEWEST  # in a branch

    @property
    def windows(self) -> int:
        """Of the val split, that all branches are judged on."""
        sequences = self.config.batch_size * self.config.gradient_accumulation_steps
        return min(MOST_WINDOWS, max(FEWEST_WINDOWS, round(SCORED_FRAC * self.updates * sequences / FORWARD)))


@dataclass(frozen=True)
class Planned:
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
    own = rest_of(config, step)
    rest = own
    if own.is_over and own.rate < 0.5 * config.learning_rate:
        # With the rate at its end nothing changes any more, whatever is changed: the branches get a last piece of schedule to play.
        rest = Rest(config.learning_rate, own.rate, 1.0, own.updates, True)
    usual = QUESTION_FRAC * config.max_iters
    return Frame(config, step, rest, own, vocab_size, usual if allowed is None else min(usual, allowed), FEWEST if allowed is None else 2)


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
    words = msg("nothing changed: the rest of the schedule, played in {count:count} updates", count=frame.updates)
    return branch(frame, f"as-planned-{frame.updates}", words, {})


def as_it_stands(frame: Frame) -> Branch:
    """The reference of a run that is over: on at the rate that it ended with."""
    if frame.rest is frame.own:
        return unchanged(frame)
    return branch(frame, f"as-it-stands-{frame.updates}", msg("nothing changed: on at the rate that it ended with"), {}, rest=frame.own)


def may_fall_further(frame: Frame) -> bool:
    """Whether a fall of the rate to zero could win anything that the run's own schedule does not."""
    return frame.own.end > ENDS_LOW * frame.own.rate


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
    """Twice as wide, grown from the weights at hand so that at first it computes exactly the same. The branch is as long as the unchanged
    one; for the rest of the run it would have only as many updates as the same FLOPs allow. As each channel is there twice, an update of
    the same rate does twice as much: the branch has half the rate, so that what it wins is won by the room and not lost by the noise."""
    config = frame.config
    if config.arch != "gpt2" or config.optimizer != "adamw":
        return None
    ratio = wider_cost(frame)
    changes = {"n_embd": WIDER * config.n_embd, "n_head": WIDER * config.n_head}
    words = msg("twice as wide ({width:count}), grown from these weights", width=WIDER * config.n_embd)
    really = {**changes, **played(config, frame.step, max(2, round(frame.rest.updates / ratio)), frame.rest)}
    return branch(frame, f"width-x{WIDER}", words, changes, None, ratio, times=1 / WIDER, is_wider=True, really=really)


def wider_cost(frame: Frame) -> float:
    """FLOPs of a token in the wider model, over those in this one."""
    config = frame.config
    grown = replace(config, n_embd=WIDER * config.n_embd, n_head=WIDER * config.n_head)
    one, other = (flops_per_token(shape_of(each, frame.vocab_size)).training for each in (config, grown))
    return other / one


def plan(frame: Frame, questions: tuple[str, ...]) -> tuple[Planned, ...]:
    """What each question would run. An unchanged branch is run once, and counted with the first question that needs one of its length."""
    found: list[Planned] = []
    counted: set[str] = set()
    for question in questions:
        each = _planned(_lengthened(frame, question), question)
        found.append(replace(each, branches=tuple(branch for branch in each.branches if branch.name not in counted)))
        counted.update(branch.name for branch in each.branches)
    return tuple(found)


def _lengthened(frame: Frame, question: str) -> Frame:
    """With branches as long as the question may cost."""
    lengths = range(frame.least, MOST + 1)
    longest = bisect_right(lengths, frame.allowed, key=lambda updates: _planned(replace(frame, updates=updates), question).cost) - 1
    return replace(frame, updates=lengths[max(0, longest)])


def _planned(frame: Frame, question: str) -> Planned:
    config, look = frame.config, WINDOWS_FRAC * frame.config.max_iters
    match question:
        case "numbers":
            same = Branch("unchanged", msg("nothing changed: the run's own next updates"), NUMBERS_UPDATES, {}, NUMBERS_UPDATES)
            return Planned(question, frame, (same,), 4.0)
        case "where" | "data":
            return Planned(question, frame, (), look)
        case "regularisation":
            off_or_on = with_dropout(frame, 0.0 if config.dropout > 0 else 0.1)
            decay = with_decay(frame, 0.0 if config.weight_decay > 0 else 0.1)
            return Planned(question, frame, (unchanged(frame), off_or_on, decay))
        case "rate":  # at most; what the first ones show decides about the others
            stands = (as_it_stands(frame),) if frame.rest is not frame.own else ()
            zero = (to_zero(frame),) if may_fall_further(frame) else ()
            return Planned(question, frame, (unchanged(frame), *stands, *zero, *(rate_times(frame, times) for times in HIGHER)))
        case "batch":
            up, down = larger_batch(frame, USUALLY_SLOWER), smaller_batch(frame)
            looks = NOISE_BATCHES + TIMED * (1 + USUALLY_SLOWER)
            return Planned(question, frame, (unchanged(frame), up) if down is None else (unchanged(frame), up, down), looks)
        case "size":
            grown = wider(frame)
            if grown is None:
                return Planned(question, frame, not_asked=msg("only models of arch=gpt2 trained by adamw can be widened in place"))
            return Planned(question, frame, (unchanged(frame), grown))
    raise AssertionError(question)
