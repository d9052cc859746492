"""Plans: arithmetic against known figures, estimates against measured runs, and warnings before the money is spent."""

from __future__ import annotations

import dataclasses
import math

import msgspec
import pytest

from nanolens.config.fields import Config
from nanolens.config.load import load
from nanolens.errors import UserError
from nanolens.facts.laws import LOSS_LAWS, critical_batch, step_law_batch, step_law_rate, worth_of_tokens
from nanolens.planning import _best_ratio, make_plan
from nanolens.planning.budget import best_for, budget_named
from nanolens.planning.figures import Calibration, DataFacts, MachineFacts, on_line
from nanolens.planning.memory import largest_micro_batch, memory_rows
from nanolens.planning.words import config_text, plan_data, plan_parts, value_of
from nanolens.show.answer import markdown
from nanolens.show.document import plain
from nanolens.show.words import say
from nanolens.sizing.devices import hardware_named, update_time
from nanolens.sizing.shape import Shape, shape_of

SHAKESPEARE = DataFacts("shakespeare_char", 1_003_854, 111_540, 65, is_char=True)
WEB = DataFacts("fineweb-edu", 10_000_000_000, 100_000_000, 50304, is_char=False)


def on(name, config=None, **changes):
    found = hardware_named(name)
    dtype = found.device.best_dtype if found.device else "float32"
    return MachineFacts(
        name,
        found.kind,
        dtype,
        found.device,
        found.count or 1,
        (found.memory_gb or min(found.device.memory_gb)) * 1e9,
        is_this_one=False,
        compiled=True,
        **changes,
    )


def config(**changes):
    return dataclasses.replace(Config(), **changes)


GPU_DEMO = config(
    dataset="shakespeare_char",
    batch_size=64,
    block_size=256,
    gradient_accumulation_steps=1,
    n_layer=6,
    n_head=6,
    n_embd=384,
    dropout=0.2,
    learning_rate=1e-3,
    min_lr=1e-4,
    max_iters=5000,
    lr_decay_iters=5000,
    warmup_iters=100,
    eval_interval=250,
    eval_iters=200,
    beta2=0.99,
)
WIDE = config(
    batch_size=8,
    gradient_accumulation_steps=64,
    n_embd=768,
    vocab_size=50304,
    max_iters=1000,
    lr_decay_iters=1000,
    warmup_iters=50,
)
NARROW = dataclasses.replace(WIDE, batch_size=16, gradient_accumulation_steps=32, n_embd=384)


# --- the figures of users' cards


@pytest.mark.parametrize(
    ("settings", "data", "card", "seconds"),
    [(GPU_DEMO, SHAKESPEARE, "RTX 4070 Ti", 0.0332), (NARROW, WEB, "RTX 4070", 3.9), (WIDE, WEB, "RTX 4070", 9.34)],
)
def test_measured_updates_of_users_lie_in_the_planned_range(settings, data, card, seconds):
    row = make_plan(settings, data, on(card)).row("update_s")
    assert row.low <= seconds <= row.high
    assert row.high / row.low <= 2.0 + 1e-9 and row.origin == "estimated"
    assert "of the rated" in say(row.how)


def test_published_updates_on_other_cards_lie_in_the_range():
    gpt2 = Shape(n_layer=12, n_head=12, n_embd=768, block_size=1024, vocab_size=50304)
    a100 = update_time(gpt2, hardware_named("A100").device, batch_size=12, accumulation=40, dtype="bfloat16", devices=8)
    assert a100.low_s < 0.250 < a100.high_s
    demo = Shape(n_layer=6, n_head=6, n_embd=384, block_size=256, vocab_size=65)
    apple = update_time(
        demo, hardware_named("M3 Max").device, batch_size=64, accumulation=1, dtype="float32", dropout=0.2
    )
    assert apple.low_s < 0.221 < apple.high_s


@pytest.mark.parametrize("card", ["RTX 3060", "RTX 4090", "A100", "H100", "T4", "M1"])
def test_the_range_is_at_most_twice_as_long_at_its_end(card):
    device = hardware_named(card).device
    for shape in (
        Shape(n_layer=2, n_head=2, n_embd=64, block_size=64, vocab_size=65),
        Shape(n_layer=24, n_head=16, n_embd=1024, block_size=1024, vocab_size=50304),
    ):
        found = update_time(shape, device, batch_size=4, accumulation=8, dtype=device.best_dtype)
        assert 1.0 < found.high_s / found.low_s <= 2.0 + 1e-9
        assert found.low_efficiency <= found.efficiency <= found.high_efficiency <= 0.95


def test_a_device_without_a_table_entry_gets_no_time():
    machine = MachineFacts("some card", "gpu", "bfloat16", None, 1, 8e9, is_this_one=False)
    row = make_plan(GPU_DEMO, SHAKESPEARE, machine).row("total_s")
    assert not row.is_known and row.origin == "unknown"


# --- arithmetic


def test_parts_of_the_plan_add_up():
    plan = make_plan(GPU_DEMO, SHAKESPEARE, on("RTX 4070 Ti"), price_per_hour=0.5)
    assert plan.value("parameters") == 10_745_088
    assert plan.value("parameters") == sum(
        row.value for row in plan.sections[0].rows if row.key.startswith("parameters_")
    )
    assert plan.value("tokens") == 5000 * 16384 and plan.value("epochs") == pytest.approx(81.6, abs=0.05)
    assert plan.value("total_s") == pytest.approx(
        sum(plan.value(key) for key in ("train_s", "eval_s", "checkpoint_s", "start_s", "end_s"))
    )
    assert plan.value("cost") == pytest.approx(plan.value("total_s") / 3600 * 0.5)
    assert plan.value("checkpoint_bytes") == 12 * plan.value("parameters")


def test_every_number_says_where_it_comes_from():
    plan = make_plan(GPU_DEMO, SHAKESPEARE, on("RTX 4070 Ti"), price_per_hour=0.5)
    for section in plan.sections:
        for row in section.rows:
            assert row.origin in ("given", "measured", "calculated", "estimated", "unknown") and say(row.how)
            if row.low is not None and row.is_known:
                assert row.low <= row.value <= row.high, row.key


def test_step_law_and_critical_batch_at_known_places():
    """The independent grid: 46 M parameters, 128 M tokens -> 24.5 k tokens an update, 1.9e-3; 1.02 B -> 80 k, 3.6e-3.
    And 0.15 to 0.39 M critical."""
    assert step_law_batch(128e6) == pytest.approx(24.5e3, rel=0.02) and step_law_rate(46e6, 128e6) == pytest.approx(
        1.9e-3, rel=0.02
    )
    assert step_law_batch(1.02e9) == pytest.approx(80e3, rel=0.03) and step_law_rate(46e6, 1.02e9) == pytest.approx(
        3.6e-3, rel=0.02
    )
    assert critical_batch(0.13e9) == pytest.approx(0.15e6, rel=0.05) and critical_batch(1e9) == pytest.approx(
        0.39e6, rel=0.05
    )


@pytest.mark.parametrize(
    ("epochs", "worth"), [(1, 1.0), (2, 0.98), (4, 0.93), (8, 0.83), (16, 0.66), (32, 0.45), (64, 0.25)]
)
def test_what_repeated_tokens_are_worth(epochs, worth):
    assert worth_of_tokens(epochs * 1e6, 1e6) / (epochs * 1e6) == pytest.approx(worth, abs=0.01)


@pytest.mark.parametrize(("flops", "ratios"), [(1e17, (20, 27)), (1e18, (20, 26)), (1e19, (20, 32))])
def test_compute_optimal_tokens_per_parameter(flops, ratios):
    assert _best_ratio(flops) == (pytest.approx(ratios[0], abs=1.0), pytest.approx(ratios[1], abs=1.0))


def test_the_laws_at_a_known_run():
    assert [round(law.loss(124e6, 10e9), 2) for law in LOSS_LAWS] == [3.01, 3.04, 3.06]


# --- memory


def test_small_models_with_a_large_vocabulary_are_mostly_logits():
    rows = {
        row.key: row
        for row in memory_rows(dataclasses.replace(NARROW, batch_size=12), shape_of(NARROW), on("RTX 4070"))
    }
    assert rows["memory_logits"].value > 3 * rows["memory_activations"].value
    assert 6e9 < rows["memory_logits"].value < 10e9  # 12 x 1024 x 50304 elements
    assert rows["memory_logits_chunked"].value < rows["memory_logits"].value / 10
    assert rows["largest_micro_batch_chunked"].value > rows["largest_micro_batch"].value


def test_the_largest_micro_batch_fits_and_the_next_does_not():
    machine = on("RTX 3060")
    from nanolens.planning.memory import peak_memory, usable_memory

    largest = largest_micro_batch(WIDE, shape_of(WIDE), machine)
    assert (
        peak_memory(WIDE, shape_of(WIDE), machine, largest)[2]
        <= usable_memory(machine)
        < peak_memory(WIDE, shape_of(WIDE), machine, largest + 1)[2]
    )


def test_a_measured_line_goes_through_its_points():
    assert on_line(((4, 10.0), (8, 18.0)), 8) == 18 and on_line(((4, 10.0), (8, 18.0)), 16) == 34
    assert on_line(((4, 10.0),), 8) == 20
    assert (
        on_line(((0, 10.0), (1, 12.0)), 1) == 12 and on_line(((0, 10.0), (1, 12.0)), 8) == 26
    )  # without a sequence: the state alone


def test_a_section_and_a_warning_of_another_file_join_the_plan(monkeypatch):
    from nanolens import planning
    from nanolens.facts.finding import Evidence, Finding
    from nanolens.message import msg
    from nanolens.planning.figures import PlanFigure, PlanSection

    def links(asked):
        yield PlanSection(
            "links",
            msg("Links"),
            (
                PlanFigure(
                    asked.shape.n_embd, msg("of the shape"), "calculated", "bytes", key="link_bytes", what=msg("bytes")
                ),
            ),
        )
        evidence = (Evidence(msg("bytes"), 2, 1, msg("the shape"), msg("of the shape")),)
        yield Finding("links_slow", "likely", msg("the links are slow"), evidence, None, msg("they are fast"))

    monkeypatch.setattr(planning, "ADDITIONS", (links,))
    plan = make_plan(WIDE, WEB, on("RTX 4070"))
    assert plan.value("link_bytes") == WIDE.n_embd and plan.warnings[-1].code == "links_slow"
    assert [section.key for section in plan.sections].index("links") == [
        section.key for section in plan.sections
    ].index("time") + 1


def calibrated(**changes):
    facts = {
        "micro_s": ((6, 0.030), (12, 0.050)),
        "forward_s": ((6, 0.01), (12, 0.016)),
        "optimizer_s": 0.005,
        "memory_bytes": ((6, 3e8), (12, 3.5e8)),
        "stall_s": 0.01,
        "sample_s": 0.2,
        "end_s": 0.5,
        "start_s": 4.0,
        "scatter": 0.02,
        "layers_timed": (4,),
        "peak_flops": 1e11,
        "achieved_flops": 6e10,
        "took_s": 8.0,
    }
    return Calibration(**{**facts, **changes})


def test_a_measurement_takes_the_place_of_the_table():
    machine = MachineFacts("here", "cpu", "float32", memory_bytes=8e9, calibration=calibrated())
    demo = load("shakespeare-char-cpu").config
    plan = make_plan(demo, SHAKESPEARE, machine)
    assert plan.value("update_s") == pytest.approx(0.055) and plan.row("update_s").origin == "measured"
    assert plan.value("memory_total") >= 3.5e8
    assert plan.value("fastest_micro_batch") == 12  # 0.055 s for 12 against 2 x 0.030 + 0.005 for twice 6
    assert plan.value("mfu") == pytest.approx(5.1617e6 * 768 / 0.055 / 1e11, rel=1e-3)


# --- warnings


def warned(settings, data=WEB, machine=None, **more):
    return {
        each.code: say(each.claim) for each in make_plan(settings, data, machine or on("RTX 4070"), **more).warnings
    }


def test_what_should_be_known_before_the_money_is_spent():
    assert "80" in warned(dataclasses.replace(GPU_DEMO, max_iters=4902), SHAKESPEARE)["data_repeated"]
    assert "will_not_fit" in warned(dataclasses.replace(WIDE, batch_size=64))
    assert "hardly decays" in warned(dataclasses.replace(WIDE, lr_decay_iters=600_000))["lr_schedule_mismatch"]
    assert "ends long before" in warned(dataclasses.replace(WIDE, lr_decay_iters=500))["lr_schedule_mismatch"]
    assert "50% of the run" in warned(dataclasses.replace(WIDE, warmup_iters=500))["lr_schedule_mismatch"]
    assert "no_warmup" in warned(dataclasses.replace(WIDE, warmup_iters=0))
    assert "dropout_in_one_epoch" in warned(dataclasses.replace(WIDE, dropout=0.1))


def test_half_a_million_tokens_an_update_on_a_small_budget():
    small = dataclasses.replace(WIDE, max_iters=191, lr_decay_iters=191, warmup_iters=10)  # 100 M tokens
    text = warned(small)["batch_too_large"]
    assert (
        "524,288 tokens per update on a budget of 100M" in text
        and "4.03 times the critical batch size of about 130,000" in text
    )
    assert "batch_too_large" not in warned(
        dataclasses.replace(WIDE, gradient_accumulation_steps=4, max_iters=24_000, lr_decay_iters=24_000)
    )


def test_a_val_set_that_is_too_small_for_the_difference():
    tiny = dataclasses.replace(WEB, val_tokens=50_000)
    assert "val_set_too_small" in warned(WIDE, tiny, difference=0.01)
    assert "eval_too_small" in warned(dataclasses.replace(WIDE, eval_iters=20), difference=0.01)
    assert (
        not {"val_set_too_small", "eval_too_small"}
        & warned(dataclasses.replace(WIDE, eval_iters=2000), difference=0.05).keys()
    )


def test_a_sound_plan_has_no_warning():
    sound = load("fineweb-edu-12gb").config
    assert not warned(dataclasses.replace(sound, chunked_head=True))


def test_a_precision_that_the_card_lacks():
    machine = dataclasses.replace(on("T4"), dtype="bfloat16")
    assert "dtype_not_supported" in warned(WIDE, machine=machine)


# --- the expected loss


def test_the_expected_loss_of_web_text_is_a_range_around_a_known_run():
    run = config(
        dataset="fineweb",
        vocab_size=50304,
        batch_size=64,
        gradient_accumulation_steps=8,
        max_iters=19_560,
        lr_decay_iters=19_560,
        warmup_iters=700,
    )
    row = make_plan(run, dataclasses.replace(WEB, name="fineweb"), on("8x A100")).row("final_loss")
    assert row.low < 3.272 < row.high and row.high - row.low < 0.3
    half = dataclasses.replace(run, max_iters=5000, lr_decay_iters=5000)
    row = make_plan(half, dataclasses.replace(WEB, name="fineweb"), on("8x A100")).row("final_loss")
    assert row.low < 3.5 < row.high  # 3.554 in the midst of a longer decay


def test_a_known_run_of_the_same_shape_and_length_tells_the_end():
    demo = load("shakespeare-char", [("learning_rate", "9e-4")]).config
    row = make_plan(demo, SHAKESPEARE, on("RTX 4070 Ti")).row("final_loss")
    assert row.value == 1.70 and row.low < 1.70 < row.high and "nanoGPT README" in say(row.how)
    shorter = dataclasses.replace(demo, max_iters=2000, lr_decay_iters=2000)
    assert make_plan(shorter, SHAKESPEARE, on("RTX 4070 Ti")).value("final_loss") is None


def test_an_unknown_corpus_has_no_expected_loss():
    row = make_plan(WIDE, DataFacts("my letters", 10**6, 10**5, 50304), on("RTX 4070")).row("final_loss")
    assert not row.is_known and "forecast" in say(row.how)


# --- a budget turned round


@pytest.mark.parametrize(
    ("text", "kind", "amount"),
    [
        ("2h", "seconds", 7200),
        ("30min", "seconds", 1800),
        ("1e15flop", "flops", 1e15),
        ("3Btok", "tokens", 3e9),
        ("500Mtok", "tokens", 5e8),
        ("1.5d", "seconds", 129600),
    ],
)
def test_budgets_are_understood(text, kind, amount):
    found = budget_named(text)
    assert (found.kind, found.amount) == (kind, pytest.approx(amount))


@pytest.mark.parametrize("text", ["", "2", "h", "-2h", "2 parsecs", "1e999flop"])
def test_other_budgets_are_refused_with_examples(text):
    with pytest.raises(UserError) as caught:
        budget_named(text)
    assert "2h" in say(caught.value.faults[0].fix)


def test_a_larger_budget_takes_a_larger_model_for_longer():
    machine = on("RTX 4070")
    sizes, lengths = [], []
    for text in ("1e16flop", "1e17flop", "1e18flop", "1e19flop"):
        chosen = best_for(budget_named(text), config(dataset="fineweb-edu"), WEB, machine).config
        sizes.append(make_plan(chosen, WEB, machine).value("parameters"))
        lengths.append(chosen.tokens_per_update * chosen.max_iters)
        flops = make_plan(chosen, WEB, machine).value("flops")
        assert flops == pytest.approx(budget_named(text).amount, rel=0.05)
    assert sizes == sorted(sizes) and lengths == sorted(lengths) and sizes[0] < sizes[-1]


def test_the_chosen_config_is_near_the_best_ratio_and_free_of_warnings():
    machine = on("RTX 4070")
    choice = best_for(budget_named("3Btok"), config(dataset="fineweb-edu"), WEB, machine)
    plan = make_plan(dataclasses.replace(choice.config, chunked_head=True), WEB, machine)
    assert 10 <= plan.value("tokens_per_parameter") <= 60
    assert not plan.warnings, [say(each.claim) for each in plan.warnings]
    assert choice.reasons


def test_a_time_budget_is_used_up_and_not_overrun():
    machine = on("RTX 4070")
    choice = best_for(budget_named("2h"), config(dataset="fineweb-edu"), WEB, machine)
    total = make_plan(dataclasses.replace(choice.config, chunked_head=True), WEB, machine).value("total_s")
    assert 0.85 * 7200 < total < 1.1 * 7200


def test_what_the_user_fixed_stays():
    machine = on("RTX 4070")
    base = config(dataset="fineweb-edu", n_layer=8, n_embd=512, n_head=8, learning_rate=1e-4)
    chosen = best_for(
        budget_named("2h"), base, WEB, machine, frozenset(("n_layer", "n_embd", "n_head", "learning_rate"))
    ).config
    assert (chosen.n_layer, chosen.n_embd, chosen.learning_rate) == (8, 512, 1e-4)


# --- forms


def test_the_config_file_reads_back_as_the_same_config(tmp_path):
    machine = on("RTX 4070")
    chosen = best_for(budget_named("2h"), config(dataset="fineweb-edu"), WEB, machine).config
    path = tmp_path / "planned.toml"
    path.write_text(config_text(chosen, "nanolens plan --budget=2h"))
    assert load(str(path)).config == chosen


def test_text_markdown_and_json_of_a_plan():
    plan = make_plan(GPU_DEMO, SHAKESPEARE, on("RTX 4070 Ti"), price_per_hour=1.0)
    text = plain(plan_parts(plan))
    data = msgspec.to_builtins(plan_data(plan))
    assert "10.75M" in text and "10.75M" in markdown(plan_parts(plan))
    assert data["plan"]["model"]["parameters"] == {
        "value": 10745088,
        "low": None,
        "high": None,
        "source": "calculated",
        "from": "computed from the shape",
    }
    assert data["plan"]["time"]["update_s"]["source"] == "estimated" and math.isfinite(
        data["plan"]["time"]["cost"]["value"]
    )
    assert {each["code"] for each in data["warnings"]} >= {"data_repeated"}
    assert value_of(plan.row("update_s")).startswith("26")


def test_the_rates_of_a_muon_recipe_are_left_alone():
    recipe = load("quickstart").config
    machine = MachineFacts("here", "cpu", "float32", memory_bytes=8e9, calibration=calibrated())
    data = DataFacts("pydocs", 1_540_000, 170_000, 96)
    chosen = best_for(budget_named("10min"), recipe, data, machine).config
    assert recipe.optimizer == "muon"
    for name in ("learning_rate", "matrix_learning_rate", "min_lr", "warmup_iters", "schedule", "beta2"):
        assert getattr(chosen, name) == getattr(recipe, name)
    assert chosen.max_iters == chosen.lr_decay_iters
