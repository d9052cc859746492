"""The vocabulary of a run: what happened, each fact with one meaning. Everything else in nanolens speaks these words.

**step** k means: k updates are done. The first update is step 1 (nanoGPT prints it as `iter 0`; its `step 0` is our
evaluation at 0). **batch loss** at step k: mean nats per token over the whole global batch of the update that led to k,
dropout as trained, not smoothed. **train and val loss** at step k: both splits evaluated with the weights of step k, in
eval mode, on fixed sets of batches. **seconds** end in `_s` and are spans; `at_s` is an instant (seconds since 1970).
Shares end in `_frac`. Losses are nats per token.

An event is one JSON line in `events.jsonl`, named by its `event` key. Numbers that are not finite are written as the
strings "nan", "inf" and "-inf", because JSON has no others. Fields may be added with a default; none changes its
meaning."""

from __future__ import annotations

import msgspec

from nanolens.message import Message, msg

Number = float | str  # a str only for "nan", "inf", "-inf"

PART_NAMES = {
    "train": msg("train"),
    "data": msg("data"),
    "eval": msg("eval"),
    "checkpoint": msg("checkpoint"),
    "sample": msg("sample"),
    "compile": msg("compile"),
    "other": msg("other"),
}
PARTS = ("compile", "data", "train", "eval", "checkpoint", "sample", "other")
"""Every second of a run belongs to one of these. `checkpoint` is how long the loop stood still, not the writing."""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True):
    at_s: float = 0.0  # when it happened; the recorder fills it in
    attempt: int = 1  # counts the processes that worked on this run: 2 is the first resume
    rank: int = 0


class RunStarted(Event, frozen=True, kw_only=True, tag="run_started"):
    step: int  # 0, or the step resumed from
    resumed_from: str = ""  # the checkpoint's folder name
    pid: int = 0
    threads: int = 0


class Chosen(Event, frozen=True, kw_only=True, tag="chosen"):
    """What the program decided by itself, and why: without this two runs cannot be compared."""

    what: str
    value: str | int | float | bool
    because: str
    words: Message | None = None  # `because` as a sentence that can be translated


def choice(what: str, value: str | int | float | bool, because: Message) -> Chosen:
    return Chosen(what=what, value=value, because=str(because), words=because)


class ConfigChanged(Event, frozen=True, kw_only=True, tag="config_changed"):
    """A setting that differs from the one this run had before it was resumed."""

    key: str
    old: str | int | float | bool | None
    new: str | int | float | bool | None


class CheckPassed(Event, frozen=True, kw_only=True, tag="check_passed"):
    """One pre-flight check: its name, what was seen, and what would have been usual."""

    check: str
    seen: Number | None = None
    usual: Number | None = None
    took_s: float = 0.0


class Compiled(Event, frozen=True, kw_only=True, tag="compiled"):
    step: int
    took_s: float


class StepTaken(Event, frozen=True, kw_only=True, tag="step_taken"):
    step: int  # updates done, this one included
    loss: Number  # batch loss
    lr: float = msgspec.field(name="rate")  # learning rate of this update (the base rate where groups differ)
    grad_norm: Number  # before clipping
    clipped: bool = False
    tokens: int  # tokens of this update, all ranks
    took_s: float  # data_s included; never an evaluation, a checkpoint or a compilation
    data_s: float = 0.0  # of which: waiting for the batch
    micro_norms: list[Number] | None = None  # norm of each micro-batch's own gradient, where it was measured
    loss_scale: float | None = None  # float16 only
    memory_bytes: int | None = None  # resident (CPU) or allocated peak (GPU) since the last step that has it
    rank_s: list[float] | None = None  # took_s of each rank, where there are several
    rank_busy_s: list[float] | None = None  # of which: its own work, without waiting for the gradients of the others
    rank_comm_s: list[float] | None = None  # how long gradients were on their way, waited for or not


class Evaluated(Event, frozen=True, kw_only=True, tag="evaluated"):
    step: int
    split: str  # "train" or "val"
    loss: Number
    standard_error: Number  # of `loss`, over batches
    batch_losses: list[Number]
    batches: str  # fingerprint of the tokens evaluated: equal fingerprints can be compared batch by batch
    tokens: int
    bits_per_byte: Number | None = None
    took_s: float = 0.0
    is_best: bool = False  # the lowest val loss of this run so far


class CheckpointSaved(Event, frozen=True, kw_only=True, tag="checkpoint_saved"):
    step: int
    bytes: int
    stall_s: float  # how long the loop stood still
    write_s: float = 0.0  # how long the background writing took
    cpu_s: float = 0.0  # CPU time of that writing
    is_best: bool = False


class CheckpointFailed(Event, frozen=True, kw_only=True, tag="checkpoint_failed"):
    step: int
    because: str


class CheckpointRefused(Event, frozen=True, kw_only=True, tag="checkpoint_refused"):
    """A damaged checkpoint that was passed over when resuming."""

    folder: str
    because: str
    words: Message | None = None  # `because` as a sentence that can be translated


class StepSkipped(Event, frozen=True, kw_only=True, tag="step_skipped"):
    """A non-finite loss or gradient that was kept from the weights. `step` is the step that stays."""

    step: int
    because: str  # "loss" or "gradient"
    layer: str = ""  # first parameter whose gradient was not finite
    sample: int = 0  # global sample cursor of the batch
    loss_scale: float | None = None


class RolledBack(Event, frozen=True, kw_only=True, tag="rolled_back"):
    from_step: int
    to_step: int
    because: str
    words: Message | None = None  # `because` as a sentence that can be translated


class MicroBatchHalved(Event, frozen=True, kw_only=True, tag="micro_batch_halved"):
    """Out of memory: the micro-batch shrank and the accumulation grew; tokens per update stayed."""

    step: int
    old: int
    new: int


class SampleWritten(Event, frozen=True, kw_only=True, tag="sample_written"):
    step: int
    text: str
    took_s: float = 0.0


class RankDrifted(Event, frozen=True, kw_only=True, tag="rank_drifted"):
    """Copies of the weights that were no longer the first rank's."""

    step: int
    ranks: list[int]
    realigned: bool = False  # they were given the first rank's weights and moments


class RanksPaced(Event, frozen=True, kw_only=True, tag="ranks_paced"):
    """How long the ranks took for the updates since the last such line: medians, by rank."""

    step: int
    updates: int  # that the medians are of
    took_s: float  # of an update
    rank_busy_s: list[float]  # its own work, without waiting for the gradients of the others
    rank_comm_s: list[float]  # how long gradients were on their way, whether or not anybody waited for them
    rank_slowest: list[int] = []  # in how many of the updates each rank was the one that worked longest
    hosts: list[str] = []  # the machine of each rank


class RanksLost(Event, frozen=True, kw_only=True, tag="ranks_lost"):
    """A rank died, hung or could not be reached; the run ended there."""

    step: int
    ranks: list[int]
    call: str  # what the others waited in
    waited_s: float
    because: str = ""
    words: Message | None = None  # `because` as a sentence that can be translated


class Warned(Event, frozen=True, kw_only=True, tag="warned"):
    """A finding that was certain while the run was still going."""

    step: int
    code: str
    claim: str
    words: Message | None = None  # `claim` as a sentence that can be translated


class RunEnded(Event, frozen=True, kw_only=True, tag="run_ended"):
    step: int
    why: str  # "finished", "stopped" (signal or request), "failed"
    because: str = ""
    words: Message | None = None  # `because` as a sentence that can be translated
    parts: dict[str, float] = {}  # seconds by part of PARTS, of this attempt
    wall_s: float = 0.0
    events_lost: int = 0
    lost_because: str = ""


class Logged(Event, frozen=True, kw_only=True, tag="logged"):
    """Anything a loop that is not ours wrote with `nanolens.log(...)` and that has no field above."""

    step: int
    values: dict[str, Number | str]


_OfTheRun = RunStarted | Chosen | ConfigChanged | CheckPassed | Compiled | Warned | RunEnded | Logged
_OfSteps = StepTaken | Evaluated | StepSkipped | RolledBack | MicroBatchHalved | SampleWritten
_OfCheckpoints = CheckpointSaved | CheckpointFailed | CheckpointRefused
_OfRanks = RankDrifted | RanksPaced | RanksLost
EVENTS = _OfTheRun | _OfSteps | _OfCheckpoints | _OfRanks
