"""`nanolens.diagnose`, `explain`, `compare`, `plan`, `forecast`: what the commands answer, as values.

told = nanolens.compare("first", "second")
print(told)               # what the command prints; a notebook shows it as a table
told.value                # the answer itself: `analysis.compare.Comparison`
told.data()               # plain dicts and numbers, as `--json` gives them
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from nanolens.config.fields import as_text

if TYPE_CHECKING:
    from nanolens.analysis.compare import Comparison
    from nanolens.analysis.explanation import Explanation
    from nanolens.analysis.plan import Plan
    from nanolens.api.run import Run
    from nanolens.diagnosis import Diagnosis
    from nanolens.forecasting import Forecast, Refusal

Answer = TypeVar("Answer")
Target: TypeAlias = "str | Path | Run"
WIDTH = 100


@dataclass(frozen=True, repr=False)
class Told(Generic[Answer]):
    """An answer, and the forms in which it can be read; `lang` is "en" or "hi"."""

    value: Answer
    text: Callable[[str], str]  # (lang) -> plain text, as the command prints it
    markdown: Callable[[str], str]
    _data: Callable[[], dict[str, Any]]

    def data(self) -> dict[str, Any]:
        """Dicts, lists, numbers and texts: the shape of `--json`."""
        return self._data()

    def __str__(self) -> str:
        return self.text("en").rstrip()

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        return self.markdown("en")


def diagnose(target: Target, *, config: str | None = None, hardware: str | None = None, **known: Any) -> Told[Diagnosis]:
    """What is wrong with a run, or with the log of any trainer, how sure that is, and what to change."""
    from nanolens.api.sources import open_run
    from nanolens.diagnosis import diagnose as diagnosed

    return told_diagnosis(diagnosed(open_run(named(target), config, hardware, _options(known))))


def told_diagnosis(found: Diagnosis) -> Told[Diagnosis]:
    from nanolens.present import as_json, markdown, text

    return Told(
        found,
        lambda lang: text.findings(found, lang, WIDTH),
        lambda lang: markdown.findings(found, lang),
        lambda: json.loads(as_json.diagnosis_json(found)),
    )


def explain(target: Target, *, config: str | None = None, hardware: str | None = None, **known: Any) -> Told[Explanation]:
    """Each number of a run, a log or a config, and the story that they tell."""
    from nanolens.explanation.subject import Subject, explained
    from nanolens.present import document, markdown, text

    found = explained(Subject(named(target), config, hardware, _options(known)))
    return Told(
        found,
        lambda lang: text.explanation(found, lang, WIDTH),
        lambda lang: markdown.explanation(found, lang),
        lambda: document.explanation(found),
    )


def compare(
    *runs: Target, against: Sequence[Target] = (), configs: Sequence[str] = (), hardware: Sequence[str] = (), rescore: bool = False,
    **known: Any,
) -> Told[Comparison]:  # fmt: skip
    """Which of these runs is better, on which axis, and whether that is more than noise; or why it cannot be said.

    `against` makes two groups of repeats. `rescore` evaluates the checkpoints of all of them again, on the same text.
    """
    from nanolens.api.comparing import comparison_of
    from nanolens.present.compare import json_of, markdown_of, text_of

    one, other = [named(run) for run in runs], [named(run) for run in against]
    rescored: tuple = ()
    if rescore:
        from nanolens.api.rescore import rescore as scored

        rescored = scored([*one, *other], len(one) if other else None)
    found = comparison_of(one, other, configs, hardware, _options(known), rescored)
    return Told(
        found, lambda lang: text_of(found, io.StringIO(), lang), lambda lang: markdown_of(found, lang), lambda: json_of(found)
    )  # fmt: skip


def plan(
    source: str | None = None, *, hardware: str | None = None, budget: str | None = None, measure: bool = True, **settings: Any
) -> Told[Plan]:
    """What a config would cost and reach; with `budget` ("2h", "1e15flop", "3Btok") the best config for it. `told.value.config` can be
    trained: `nanolens.train(**dataclasses.asdict(told.value.config))`."""
    from nanolens.api.planning import Question, answer
    from nanolens.api.plans import remember
    from nanolens.present.blocks import plain
    from nanolens.present.plan import blocks_of, json_of, markdown_of

    found = answer(Question(source, _options(settings), hardware, budget, measure=measure))
    remember(found.plan)
    return Told(
        found.plan,
        lambda lang: plain(blocks_of(found.plan, lang, found.reasons), WIDTH),
        lambda lang: markdown_of(found.plan, lang, found.reasons),
        lambda: json_of(found.plan),
    )


def forecast(target: Target, at: int | str | None = None, *, config: str | None = None, **known: Any) -> Told[Forecast | Refusal]:
    """Where the curve is going, with an interval, or why that cannot be said. `at` is a step, or so many tokens ("500Mtok")."""
    from nanolens.api.forecasting import step_named
    from nanolens.api.sources import open_run
    from nanolens.forecasting import forecast as foreseen
    from nanolens.present.forecast import json_of, markdown_of, text_of

    run = open_run(named(target), config, None, _options(known))
    found = foreseen(run, None if at is None else step_named(str(at), run))
    return Told(
        found,
        lambda lang: text_of(found, run, io.StringIO(), lang),
        lambda lang: markdown_of(found, run, lang),
        lambda: json_of(found, run),
    )


def named(target: Target) -> str:
    """What the command line would say."""
    return str(getattr(target, "source", target))


def _options(known: dict[str, Any]) -> list[tuple[str, str]]:
    return [(key, as_text(value)) for key, value in known.items()]
