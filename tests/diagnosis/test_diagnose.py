"""The findings together: the cause first, no contradictions, and an answer for any run at all."""

import ast
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nanolens.diagnosis
from nanolens.diagnosis import FAULTS, diagnose, is_fault
from nanolens.diagnosis.pages import page_of
from nanolens.diagnosis.rule import CODES, LACKS, PROGRESS, SENTENCES, WORDS, Code
from nanolens.diagnosis.rules import RULES
from nanolens.diagnosis.weighing import causes
from nanolens.message import KINDS, placeholders
from nanolens.record.run import Conventions, Known, Mark, RunRecord, evals_from, steps_from
from tests.diagnosis.rules.build import GPT2, GPU_DEMO, curve, found, make, mark, sure

VOCABULARY = """nan_divergence nan_sentinel_benign hf_zero_loss_is_nan fp16_overflow fused_adamw_fp16_bug grad_explosion loss_divergence collapse_to_unigram
    bigram_plateau attention_bug kernel_bug dead_init constant_loss still_improving run_too_short overfitting data_repeated checkpoint_not_best
    underfitting_capacity val_below_train_ok too_good_to_be_true val_leak above_reference init_loss_ok lr_too_high lr_too_low lr_zero
    lr_schedule_mismatch batch_too_small grad_accum_inferred grad_accum_loss_scaling grad_sync_bug resume_discontinuity config_log_mismatch
    param_count_mismatch token_accounting eval_noise micro_batch_noise seed_noise mfu_wrong_peak mfu_unknown_peak mfu_over_100 mfu_ema_lag low_mfu
    slow_hardware eval_spike checkpoint_spike compile_warmup eval_dominates_time throttling_suspected step_time_schedule oom_optimizer_state
    oom_logits duplicate_lines grad_nan empty_validation loss_scale_collapse data_bound_or_swap
    finished weights_not_updated""".split()


def test_every_code_that_a_log_can_show_has_a_symptom():
    assert set(VOCABULARY) <= set(CODES)
    weighed = {cause.code for cause in causes().values()}
    assert set(CODES) == weighed | {name for each in RULES for name in each.codes}  # each declared, whoever reports it


def test_a_code_speaks_of_codes_that_exist():
    assert all({*code.overrules, *PROGRESS} <= set(CODES) for code in CODES.values())


def test_a_code_has_no_field_that_nobody_reads():
    fields = {*Code.__dataclass_fields__, *SENTENCES, "kind", "command"}
    tables = [{key for key, value in table.items() if not isinstance(value, dict)} for table in WORDS.values()]
    assert set().union(*tables) <= fields
    assert {table.get("kind", "number") for table in WORDS.values()} <= KINDS


def test_what_a_rule_needs_has_a_sentence_for_being_missing():
    assert {fact for each in RULES for fact in each.needs} <= set(LACKS)


def test_every_code_is_explained_under_the_five_headings():
    for code in CODES:
        page = page_of(code)
        for heading in (
            "What it sees.",
            "Why it matters.",
            "When it is wrong.",
            "What it looks like.",
            "What to change.",
        ):
            assert page is not None and heading in page.text, (code, heading)
    assert page_of("no_such_code") is None


def test_every_finding_has_a_number_a_comparison_and_a_way_to_be_wrong():
    steps, losses = curve(100)
    losses[60:] = np.nan
    run = make(losses, steps, not_finite=np.where(np.isfinite(losses), 0.0, 1.0), dtype="float16", **GPT2)
    for finding in diagnose(run).findings:
        assert finding.evidence and finding.wrong_if.msgid
        assert all(item.usual is not None and item.where.msgid and item.how.msgid for item in finding.evidence), (
            finding.code
        )
        if is_fault(finding):
            assert finding.change is not None, finding.code


def test_a_healthy_run_is_called_so():
    steps, losses = curve(300)
    assert "healthy" in sure(make(losses, steps, **GPT2))


def test_a_fault_is_never_called_healthy():
    steps, losses = curve(300)
    losses[200:] = np.nan
    run = make(losses, steps, not_finite=np.where(np.isfinite(losses), 0.0, 1.0))
    assert "healthy" not in found(run)


def test_too_little_is_not_called_healthy():
    assert "healthy" not in found(make([3.2, 3.1]))


def test_precision_comes_before_the_nan_that_it_caused():
    steps, losses = curve(100)
    losses[60:] = np.nan
    run = make(losses, steps, not_finite=np.where(np.isfinite(losses), 0.0, 1.0), dtype="float16")
    codes = [finding.code for finding in diagnose(run).findings]
    assert codes.index("fp16_overflow") < codes.index("nan_divergence")


def test_a_flat_tail_at_rate_zero_is_not_a_fault():
    steps, losses = curve(300, end=3.3)
    losses[-40:] = 3.3 + 0.02 * np.random.default_rng(0).standard_normal(40)
    evals = [(int(s), 3.3, 3.2722) for s in (260, 270, 280, 290, 300)]
    run = make(losses, steps, evals, rate=np.maximum(0, 6e-4 * (1 - steps / 280)))
    assert not {code for code in sure(run) if code in FAULTS}


def test_what_could_not_be_checked_is_told_once_for_each_code():
    missed = [item.code for item in diagnose(make([3.0, 2.9, 2.8])).not_checked]
    assert missed and len(missed) == len(set(missed))


def test_an_error_in_the_log_is_never_healthy():
    steps, losses = curve(50)
    assert "healthy" not in found(make(losses, steps, marks=[mark("error", 50, "RuntimeError: boom")]))


numbers = st.floats(allow_nan=True, allow_infinity=True, width=32)
facts = st.one_of(
    st.integers(-10, 10**9),
    numbers,
    st.booleans(),
    st.text(max_size=12),
    st.none(),
    st.just(()),
    st.lists(st.floats(-1, 1), max_size=3).map(tuple),
    st.sampled_from(
        [
            "cosine",
            "default 40",
            "RTX 4070",
            "8x H100",
            "laptop CPU",
            "float16",
            "shakespeare_char",
            "fineweb",
            "125M",
            "10B tokens",
            "gpt2-xl",
            "4.47.0",
        ]
    ),
)
NAMES_OF_FACTS = [
    *GPU_DEMO,
    *GPT2,
    "hardware",
    "dtype",
    "parameters",
    "tokens_per_update",
    "peak_flops",
    "init_from",
    "transformers",
    "comments",
    "devices",
    "figure_axis",
    "final_val_losses",
    "unigram_nats",
    "bigram_nats",
    "time_budget_s",
    "claimed_parameters",
    "torch",
    "device",
]


@st.composite
def runs(draw):
    rows, evals = draw(st.integers(0, 40)), draw(st.integers(0, 12))
    column = lambda count: hnp.arrays(float, count, elements=numbers)  # noqa: E731
    steps = np.cumsum(draw(hnp.arrays(int, rows, elements=st.integers(0, 50))))
    names = draw(
        st.sets(
            st.sampled_from(
                [
                    "loss",
                    "rate",
                    "grad_norm",
                    "took_s",
                    "tokens",
                    "tokens_per_s",
                    "mfu_frac",
                    "at_s",
                    "loss_scale",
                    "data_s",
                    "clipped",
                    "not_finite",
                ]
            )
        )
    )
    table = {"step": steps, "printed": steps, "line": np.arange(rows), **{name: draw(column(rows)) for name in names}}
    at = np.cumsum(draw(hnp.arrays(int, evals, elements=st.integers(0, 200))))
    seen = {
        "step": at,
        "printed": at,
        "line": np.arange(evals),
        **{
            name: draw(column(evals))
            for name in draw(st.sets(st.sampled_from(["train", "val", "val_se", "took_s", "not_finite"])))
        },
    }
    known = {
        name: Known(value, draw(st.sampled_from(["given", "printed", "inferred"])), "x")
        for name, value in draw(st.dictionaries(st.sampled_from(NAMES_OF_FACTS), facts, max_size=14)).items()
    }
    kinds = ["checkpoint", "resume", "attempt", "skip", "out_of_memory", "sentinel", "warned", "error", "rollback"]
    marks = tuple(
        Mark(kind, draw(st.one_of(st.none(), st.integers(0, 500))), 1, draw(st.text(max_size=20)))
        for kind in draw(st.lists(st.sampled_from(kinds), max_size=4))
    )
    words = Conventions(
        draw(st.sampled_from(["nanogpt", "nanolens", "nanochat", "llm.c", "unknown", "modded-nanogpt"])),
        draw(st.sampled_from(["mean", "last_micro_batch", "unknown"])),
        draw(st.sampled_from(["step_only", "with_eval", "average", "unknown"])),
        draw(st.integers(0, 1)),
        draw(st.sampled_from([None, 312e12, 989e12])),
        draw(st.booleans()),
    )
    return RunRecord("any", words, steps_from(table, rows), evals_from(seen, evals), known, marks)


@given(runs())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_run_gets_an_answer_and_no_warning(run):
    diagnose(run)


def test_the_first_fall_alone_is_not_health():
    levels = (10.9, 7.62, 7.60, 7.59)
    assert "healthy" not in found(
        make(evals=[(1000 * i, v, v + 0.01) for i, v in enumerate(levels)], dataset="openwebtext")
    )
    steps = np.arange(200) * 10
    stuck = np.where(steps < 100, 9.0, 5.0) + 0.02 * np.random.default_rng(1).standard_normal(200)
    assert "healthy" not in found(make(stuck, steps))
    assert "healthy" in found(make(stuck - 0.001 * np.maximum(0, steps - 100), steps))


def test_a_flat_end_is_health_where_the_schedule_has_ended():
    losses = np.r_[np.linspace(9, 5, 70), np.full(130, 5.0)] + 0.02 * np.random.default_rng(1).standard_normal(200)
    settings = {"learning_rate": 1e-3, "min_lr": 1e-4, "warmup_iters": 10}
    assert "healthy" in found(make(losses, lr_decay_iters=200, **settings))
    assert "healthy" not in found(make(losses, lr_decay_iters=400, **settings))


def test_a_fall_too_slow_for_any_law_is_not_health():
    steps = np.arange(1, 41) * 100
    slow, sound = 5.0 - 0.00001 * steps, 5.0 - 0.0001 * steps
    slow[:3], sound[:3] = 8.0, 8.0
    assert "healthy" not in found(make(slow, steps)) and "healthy" in found(make(sound, steps))


def test_a_flat_stable_phase_is_health_where_the_decay_is_still_to_come():
    losses = np.r_[np.linspace(9, 4, 20), np.full(40, 4.0)] + 0.01 * np.random.default_rng(2).standard_normal(60)
    words = Conventions(trainer="nanochat", updates_before_printed=1)
    assert "healthy" in found(make(losses, np.arange(60) * 50 + 1, conventions=words, max_iters=4500))
    assert "healthy" not in found(make(losses, np.arange(60) * 50 + 1, conventions=words, max_iters=3000))


def test_a_rule_gives_the_values_that_the_words_of_its_findings_have_places_for():
    mentioned = set()
    for path in Path(nanolens.diagnosis.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        mentioned |= _names_in(tree)
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            body = ast.Module(function.body, [])
            for call in (node for node in ast.walk(body) if isinstance(node, ast.Call)):
                if isinstance(call.func, ast.Name) and call.func.id == "finding":
                    first = call.args[0]
                    names = _names_in(first) if isinstance(first, ast.Constant) else _names_in(body)
                    parts = SENTENCES if "Seen" in ast.unparse(body) else ("claim", "change", "wrong_if")
                    _check(names, parts, {keyword.arg for keyword in call.keywords})
    weighed = {cause.code for cause in causes().values()}
    assert mentioned | weighed | {f"{code}.weighed" for code in weighed} == set(WORDS)


def _names_in(tree: ast.AST) -> set[str]:
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value in WORDS}


def _check(names: set[str], parts: tuple[str, ...], given: set[str]) -> None:
    for name in names:
        words = WORDS[name]
        assert {"claim", "wrong_if"} <= words.keys(), name
        sentences = (words[part] for part in parts if part in words and part not in given)
        wanted = {key for sentence in sentences for key in placeholders(sentence)} - given
        assert not wanted or (wanted == {"command"} and "command" in words), f"{name} lacks {wanted}"
