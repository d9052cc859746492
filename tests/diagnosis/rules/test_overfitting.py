import numpy as np

from tests.diagnosis.rules.build import GPU_DEMO, found, make, mark, sure


def evaluations(vals, trains, every=250):
    return [(every * i, train, val) for i, (train, val) in enumerate(zip(trains, vals, strict=True))]


def demo():
    """The well-known course: val lowest near 1,750, then up; train down all the way."""
    steps = np.arange(0, 21)
    train = 0.6 + 3.6 * np.exp(-steps / 4)
    val = np.where(steps <= 7, 1.47 + 2.7 * (1 - steps / 7) ** 3, 1.47 + 0.018 * (steps - 7))
    return evaluations(val, train)


def test_val_that_leaves_its_minimum_while_train_falls():
    finding = found(make(evals=demo(), **GPU_DEMO), "overfitting")["overfitting"]
    assert finding.sureness == "certain"
    assert finding.evidence[0].at_step == 1750 and finding.change.new == 1750


def test_one_evaluation_and_the_known_run_of_this_config():
    run = make(evals=[(5000, 0.6224, 1.7044)], **GPU_DEMO)
    finding = found(run, "overfitting")["overfitting"]
    assert finding.sureness == "likely"
    assert finding.evidence[0].usual == 1.4697
    assert abs(finding.evidence[2].seen - 81.6) < 0.1


def test_the_same_config_before_its_minimum_is_not_overfitting():
    assert not found(make(evals=[(250, 1.5440, 1.7220)], **GPU_DEMO), "overfitting")


def test_train_near_val_is_never_overfitting_however_flat():
    rng = np.random.default_rng(0)
    for seed in range(30):
        vals = 3.6 + 0.4 * np.exp(-np.arange(20) / 3) + 0.01 * rng.standard_normal(20)
        evals = evaluations(vals, vals + 0.05 + 0.01 * rng.standard_normal(20), every=1000)
        assert not found(
            make(evals=evals, vocab_size=50304, eval_iters=50, batch_size=16, block_size=1024), "overfitting"
        ), seed


def test_a_gap_while_val_still_falls_is_not_overfitting():
    steps = np.arange(20)
    evals = evaluations(2.0 + 2 * np.exp(-steps / 6), 1.2 + 2.8 * np.exp(-steps / 5))
    assert not sure(
        make(evals=evals, dataset_tokens=1e6, batch_size=64, block_size=256, gradient_accumulation_steps=1),
        "overfitting",
    )


def test_less_than_one_epoch_cannot_overfit():
    assert not found(
        make(evals=demo(), **{**GPU_DEMO, "dataset": "mine", "vocab_size": 65, "dataset_tokens": 1e9}), "overfitting"
    )


def test_a_noisy_flat_val_has_a_minimum_but_no_overfitting():
    rng = np.random.default_rng(3)
    for seed in range(40):
        vals = 1.50 + 0.02 * rng.standard_normal(24)
        trains = 1.40 - 0.003 * np.arange(24) + 0.02 * rng.standard_normal(24)
        assert not sure(make(evals=evaluations(vals, trains), vocab_size=65), "overfitting"), seed


def test_a_checkpoint_written_after_the_minimum_is_not_the_best():
    run = make(evals=demo(), marks=[mark("checkpoint", 1750), mark("checkpoint", 5000)], **GPU_DEMO)
    assert "checkpoint_not_best" in sure(run, "overfitting")
    kept = make(evals=demo(), marks=[mark("checkpoint", 1500), mark("checkpoint", 1750)], **GPU_DEMO)
    assert "checkpoint_not_best" not in found(kept, "overfitting")


def test_overfitting_is_not_still_improving():
    assert "still_improving" not in found(make(evals=demo(), **GPU_DEMO))


def stands(fall_of_train, fall_of_val=0.0, count=40):
    """Both splits fall together in the first half; in the second each by its own amount."""
    scatter = 0.01 * np.random.default_rng(3).standard_normal((2, count))
    first = np.linspace(6.0, 4.0, count // 2)
    train = np.r_[first, np.linspace(4.0, 4.0 - fall_of_train, count // 2)] + scatter[0]
    val = np.r_[first + 0.1, np.linspace(4.1, 4.1 - fall_of_val, count // 2)] + scatter[1]
    return make(evals=[(100 * i, train[i], val[i]) for i in range(count)])


def test_a_val_that_stands_still_while_train_falls_is_overfitting_and_not_noise():
    codes = sure(stands(0.6))
    assert "overfitting" in codes and not codes & {"eval_noise", "healthy"}


def test_a_val_that_still_falls_or_a_train_that_stands_too_is_no_overfitting():
    assert "overfitting" not in sure(stands(0.6, 0.4))
    assert "overfitting" not in sure(stands(0.0))


def test_one_train_line_an_epoch_is_enough_and_names_no_setting():
    losses = [2.4, 1.7, 1.2, 0.8, 0.5]
    evals = [(i + 1, np.nan, val) for i, val in enumerate((2.0, 1.8, 1.95, 2.2, 2.6))]
    finding = found(make(losses, evals=evals, steps_are_epochs=True), "overfitting")["overfitting"]
    assert finding.sureness != "possible" and finding.change.key == ""
    assert finding.evidence[1].seen == 0.5  # the mean of what was printed since the evaluation before: one line


def test_batch_losses_against_one_evaluation_of_unknown_data_say_nothing():
    losses = [2.0 + 0.01 * (step % 3) for step in range(50)]
    assert not found(make(losses=losses, evals=[(50, float("nan"), 4.0)]), "overfitting")
