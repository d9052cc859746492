import dataclasses

import numpy as np

from tests.diagnosis.rules.build import char_curve, curve, found, make, mark, sure


def test_one_update_that_destroys_the_model():
    steps, losses = curve(30, end=4.8, every=10)
    losses[20:] = [270, 182, 121, 96, 68, 78, 40, 31, 28, 25]
    findings = found(make(losses, steps, vocab_size=50304), "grad_explosion")
    assert findings["grad_explosion"].sureness == "certain"
    assert findings["grad_explosion"].evidence[0].at_step == steps[20]
    assert "loss_divergence" in findings


def test_a_rise_that_stays_is_divergence():
    steps, losses = curve(400, end=3.5, every=10)
    losses[250:] = 7.8 + 0.1 * np.random.default_rng(0).standard_normal(150)
    finding = found(make(losses, steps), "grad_explosion")["loss_divergence"]
    assert abs(finding.evidence[0].seen - 7.8) < 0.05
    assert 2000 < finding.evidence[0].at_step < 2600


def test_a_spike_that_heals_is_no_divergence():
    steps, losses = curve(400, end=3.5)
    losses[200:206] += [2.5, 2, 1.5, 1, 0.5, 0.2]
    assert not sure(make(losses, steps), "grad_explosion")


def test_falling_and_noisy_curves_are_sound():
    for seed in range(20):
        for noise in (0.02, 0.1, 0.3):
            steps, losses = curve(60 + 20 * seed, noise=noise, seed=seed)
            assert not sure(make(losses, steps), "grad_explosion"), (seed, noise)


def test_overfitting_val_is_not_called_divergence():
    evals = [(250 * i, 1.5 - 0.04 * i, 1.47 + 0.012 * abs(i - 7)) for i in range(1, 21)]
    steps, losses = char_curve()
    assert "loss_divergence" not in sure(make(losses, steps, evals))


def test_a_rise_at_a_resume_belongs_to_the_resume():
    steps, losses = curve(300, end=3.5, noise=0.02)
    losses[200:] += 0.6
    assert "loss_divergence" not in found(make(losses, steps, marks=[mark("resume", 200)]), "grad_explosion")


def test_a_rise_shown_batch_by_batch_needs_two_evaluations():
    rng = np.random.default_rng(0)
    hard = 0.3 * rng.standard_normal(10)  # some batches are harder than others, in every evaluation
    losses = np.r_[np.linspace(4, 3.0, 40), np.linspace(3.0, 3.36, 20)]
    run = make(losses, evals=[(10 * i, v, v) for i, v in enumerate([4.5, 3.4, 3.2, 3.1, 3.0, 3.33, 3.36])])
    kept = tuple(v + hard + 0.01 * rng.standard_normal(10) for v in run.evals.val)
    run = dataclasses.replace(run, evals=dataclasses.replace(run.evals, batches=("same",) * 7, val_batch_losses=kept))
    assert "loss_divergence" in sure(run, "grad_explosion")
    calm = dataclasses.replace(
        run,
        evals=dataclasses.replace(
            run.evals, val_batch_losses=tuple(kept[4] + 0.01 * rng.standard_normal(10) for _ in kept)
        ),
    )
    assert "loss_divergence" not in sure(calm, "grad_explosion")

    learnt = dataclasses.replace(run, steps=dataclasses.replace(run.steps, loss=np.linspace(4, 0.5, 60)))
    assert "loss_divergence" not in sure(
        learnt, "grad_explosion"
    )  # what is trained on falls: the updates do what they should


def test_both_splits_of_two_evaluations_do_not_rise_together_by_chance():
    assert "loss_divergence" in sure(make(evals=[(1, 2.76, 2.757), (2, 6.228, 6.22)]))
    assert "loss_divergence" not in sure(make(evals=[(1, 2.76, 2.757), (2, 2.1, 6.22)]))  # val alone: another finding
    assert "loss_divergence" not in sure(make(evals=[(1, 2.76, 2.757), (2, 3.1, 3.2)]))  # too little for so few points


def test_a_val_loss_alone_that_rises_may_be_either():
    evals = [(100 * i, np.nan, v) for i, v in enumerate([4.0, 2.0, 1.8, 1.75, 1.9, 2.1, 2.3, 2.5, 2.7, 2.9], 1)]
    assert "loss_divergence" not in sure(make(evals=evals), "grad_explosion")


def test_one_bad_batch_is_no_explosion():
    steps, losses = curve(200, start=1.2, end=0.7, noise=0.05)
    losses[120] = 6.5
    assert not sure(make(losses, steps), "grad_explosion")
