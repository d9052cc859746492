"""What the referee found, in words and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from nanolens.message import Message, msg
from nanolens.refereeing import Decision, Refereed, TryVerdict
from nanolens.refereeing.series import is_own
from nanolens.show.answer import Answer, typed
from nanolens.show.document import GAP, Part, Table, Text, TextBlock, bullet
from nanolens.show.words import show

VERDICTS: dict[Decision, Message] = {
    "gain": msg("a gain"),
    "not_shown": msg("not told from luck"),
    "harm": msg("worse"),
    "not_counted": msg("not counted"),
    "failed": msg("failed"),
    "baseline": msg("baseline"),
}
LONGEST_DESCRIPTION = 60
MOST_TRIES_SHOWN = 100  # that anyone would spend on a few changes


def answer_of(found: Refereed) -> Answer[Refereed]:
    return Answer(found, lambda lang: list(_parts(found)), lambda lang: referee_data(found, lang))


def _parts(found: Refereed) -> Iterator[Part]:
    yield from (*map(TextBlock, headline(found)), GAP)
    yield Table(
        [msg("try"), msg("claimed"), msg("holds"), msg("95%"), msg("chance"), ""],
        list(map(_row, found.verdicts)),
        left=(0, 5),
    )
    yield GAP
    named = [each for each in found.verdicts if each.because]
    if named:
        yield TextBlock(msg("Changed besides"), "head")
        yield from (bullet(msg("{name}: {because}", each.name, each.because), "likely") for each in named)
    yield TextBlock(msg("Noise floor"), "head")
    noise = found.noise
    sd = msg(
        "one run repeated scatters by {sd:about} ({low:about} to {high:about}), from:", noise.sd, noise.low, noise.high
    )
    yield from (TextBlock(sd, indent=2), *map(bullet, noise.origins))
    if noise.repeats:
        words = msg("{count:count repeat|repeats} of the baseline would make it known to a quarter", noise.repeats)
        yield TextBlock(_with_time(words, noise.seconds), "note", indent=2)
    steps = list(_next(found))
    if steps:
        yield from (TextBlock(msg("What next"), "head"), *map(bullet, steps))
    yield from (TextBlock(note, "note") for note in found.series.notes)


def headline(found: Refereed) -> list[Message]:
    """The answer in two or three sentences."""
    gains, kept = found.those("gain"), found.kept
    if kept:
        told = [each for each in kept if each.decision == "gain"]
        words = msg(
            "Of {kept:count kept change|kept changes} {told:count} can be told from luck.", len(kept), len(told)
        )
        parts = [words]
        if (others := len(gains) - len(told)) > 0:
            parts.append(msg("{count:count change|changes} that were not kept can be told from luck as well.", others))
    else:
        tried = sum(each.decision not in ("baseline", "failed") and is_own(each.of) for each in found.verdicts)
        parts = [msg("Of {tried:count change|changes} {told:count} can be told from luck.", tried, len(gains))]
    if gains:
        total, share = sum(each.gain or 0.0 for each in gains), found.false_share
        parts.append(
            msg(
                "Together they are worth {total:about}; about {share:share} of them are expected to be none.",
                total,
                share,
            )
        )
    if found.luck is not None:
        luck, half = found.luck
        parts.append(msg("The other kept changes together are worth {luck:about} ± {half:about}.", luck, half))
    if kept:
        claimed = sum(each.claimed or 0.0 for each in kept)
        parts.append(msg("Claimed by their scores: {claimed:about}.", claimed))
    return parts


def _row(each: TryVerdict) -> Sequence[Text]:
    interval = (
        "-" if each.low is None or each.high is None else f"{show(each.low, 'about')} … {show(each.high, 'about')}"
    )
    claimed, gain, odds = show(each.claimed, "about"), show(each.gain, "about"), show(each.odds, "share")
    what = each.what if isinstance(each.what, Message) else _cut(each.what)
    kept = msg("{verdict}, was kept: {what}", VERDICTS[each.decision], what)
    words = kept if each.was_kept else msg("{verdict}: {what}", VERDICTS[each.decision], what)
    return [_cut(each.name), claimed, gain, interval, odds if each.odds is None else f"{each.odds:.0%}", words]


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_DESCRIPTION else text[: LONGEST_DESCRIPTION - 1] + "…"


def _next(found: Refereed) -> Iterator[Message]:
    if found.first is not None:
        words = msg(
            "repeat {name:code} first: {runs:count run|runs} a side decide whether it gains {gain:about}",
            found.first.names[0],
            found.first.runs,
            found.first.gain,
        )
        yield _with_time(words, found.first.seconds)
    if (leaders := found.leaders) is not None:
        words = msg(
            "{runs:count run|runs} a side decide between the leaders {names:code}, which are {gain:about} apart",
            leaders.runs,
            leaders.names,
            leaders.gain,
        )
        yield _with_time(words, leaders.seconds)
    if (together := found.together) is not None and together.runs > MOST_TRIES_SHOWN:
        yield msg(
            "take {names:code} out: together they are worth {gain:about}, which {runs:count run|runs} a side "
            "would not show",
            together.names,
            together.gain,
            MOST_TRIES_SHOWN,
        )
    elif together is not None:
        words = msg(
            "take {names:code} out and test them together: {runs:count run|runs} a side decide whether they "
            "are worth {gain:about}",
            together.names,
            together.runs,
            together.gain,
        )
        yield _with_time(words, together.seconds)


def _with_time(words: Message, seconds: float | None) -> Message:
    if seconds is None:
        return msg("{words} (how long a run takes is not known)", words)
    return msg("{words} (about {seconds:rough_seconds} as they ran here)", words, seconds)


# --- as JSON


class RefereedTryData(msgspec.Struct):
    name: str
    what: str
    status: str
    decision: str
    scores: list[float]
    parent: str | None
    changes: list[str]
    confounders: list[str]
    because: list[str]
    claimed: float | None
    gain: float | None
    low: float | None
    high: float | None
    odds: float | None


class NoiseFloorData(msgspec.Struct):
    sd: float
    low: float
    high: float
    origins: list[str]
    repeats: int
    seconds: float | None


class RepeatData(msgspec.Struct):
    names: list[str]
    gain: float
    runs: int
    seconds: float | None


class RefereeData(msgspec.Struct):
    series: str
    score: str
    is_lower_better: bool
    headline: list[str]
    noise: NoiseFloorData
    tries: list[RefereedTryData]
    kept: int
    told_from_luck: int
    false_share: float
    rest_worth: float | None
    rest_half_width: float | None
    first: RepeatData | None
    leaders: RepeatData | None
    together: RepeatData | None
    notes: list[str]


def referee_data(found: Refereed, lang: str = "en") -> RefereeData:
    worth, half = found.luck or (None, None)
    return typed(
        RefereeData,
        found,
        lang,
        series=found.series.source,
        score=found.series.score,
        is_lower_better=found.series.is_lower_better,
        headline=headline(found),
        tries=[_try_data(found, each, lang) for each in found.verdicts],
        kept=len(found.kept),
        told_from_luck=len(found.those("gain")),
        rest_worth=worth,
        rest_half_width=half,
        notes=found.series.notes,
    )


def _try_data(found: Refereed, each: TryVerdict, lang: str) -> RefereedTryData:
    of = each.of
    parent = None if of.parent is None else found.series.tries[of.parent].name
    return typed(
        RefereedTryData,
        each,
        lang,
        status=of.status,
        scores=of.scores,
        parent=parent,
        changes=of.changes,
        confounders=of.confounders,
    )
