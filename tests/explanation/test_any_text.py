"""Whatever a log holds, explaining it ends in words, in both languages and without a traceback."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanolens.errors import UserError
from nanolens.explanation import explain
from nanolens.explanation.words import answer_of
from nanolens.facts.case import Case
from nanolens.logs import Given, read_log
from tests.explanation.given_logs import EVERY_500TH, FINEWEB, SHAKESPEARE, GivenLog

LOGS = st.sampled_from([SHAKESPEARE, FINEWEB, EVERY_500TH])
NUMBERS = st.sampled_from(["nan", "inf", "-1", "0", "1e300", "99999999999999999999", "0.0000", "1.5"])


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, GivenLog]:
    """A log with numbers replaced, lines dropped, repeated and cut."""
    log = draw(LOGS)
    lines = []
    for line in log.text.splitlines():
        words = line.split(" ")
        if draw(st.booleans()):
            at = draw(st.integers(0, len(words) - 1))
            words[at] = draw(NUMBERS) + ("," if words[at].endswith(",") else "")
        line = " ".join(words)
        lines += [line[: draw(st.integers(0, len(line)))] if draw(st.integers(0, 9)) == 0 else line] * draw(
            st.sampled_from([1, 1, 1, 0, 2])
        )
    return "\n".join(lines), log


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutated(), st.booleans())
def test_a_mutilated_log(case: tuple[str, GivenLog], with_config: bool) -> None:
    body, log = case
    try:
        run = read_log(body.encode(), Given(log.config, hardware=log.hardware) if with_config else None)
    except UserError:
        return
    lines = body.split("\n")
    explained = explain(Case(run), lambda line: lines[line - 1] if 0 < line <= len(lines) else "")
    for lang in ("en", "hi"):
        assert answer_of(explained).text(lang).strip()
        assert answer_of(explained).markdown(lang).strip() and answer_of(explained).html(lang).strip()
        assert answer_of(explained).data(lang)["name"]


CONFIG_VALUES = st.one_of(
    st.integers(-1, 10**12), st.floats(allow_nan=True), st.text(max_size=8), st.booleans(), st.none()
)


@settings(max_examples=60, deadline=None)
@given(
    LOGS,
    st.dictionaries(
        st.sampled_from(sorted({*SHAKESPEARE.config, "vocab_size", "dataset_tokens", "peak_flops", "bytes_per_token"})),
        CONFIG_VALUES,
        max_size=6,
    ),
)
def test_a_senseless_config(log: GivenLog, wrong: dict[str, object]) -> None:
    run = read_log(log.text, Given(config={**log.config, **wrong}, hardware=log.hardware))
    assert answer_of(explain(Case(run), log.quote)).text()
