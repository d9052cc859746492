import numpy as np

from nanolens.record.run import Mark
from tests.diagnosis.rules.build import curve, found, make, mark, sure


def test_a_jump_that_stays():
    steps, losses = curve(300, end=3.3)
    losses[200:] += 0.3
    assert "resume_discontinuity" in sure(make(losses, steps, marks=[mark("resume", 200)]), "resume_discontinuity")


def test_a_rate_that_jumped_is_the_schedule():
    steps, losses = curve(300, end=3.3)
    losses[200:] += 0.3
    rate = np.where(np.arange(300) < 200, 6e-5, 6e-4)
    finding = found(make(losses, steps, rate=rate, marks=[mark("resume", 200)]), "resume_discontinuity")[
        "resume_discontinuity"
    ]
    assert len(finding.evidence) == 2


def test_a_resume_without_a_jump_is_fine():
    for seed in range(20):
        steps, losses = curve(300, end=3.3, noise=0.1, seed=seed)
        assert not sure(make(losses, steps, marks=[mark("resume", 200)]), "resume_discontinuity"), seed


def test_the_same_step_in_both_attempts_tells_of_a_jump():
    losses, steps = np.linspace(4.0, 3.9, 4), np.array([901, 911, 921, 931])
    jumped = Mark("resume", 900, 9, was=3.4, now=4.1, is_eval=True)
    assert "resume_discontinuity" in sure(make(losses, steps, marks=[jumped]), "resume_discontinuity")
    assert not sure(
        make(losses, steps, marks=[Mark("resume", 900, 9, was=4.0, now=4.02, is_eval=True)]), "resume_discontinuity"
    )


def test_of_two_lines_only_a_large_jump_counts():
    steps = np.arange(1, 5) * 10
    assert "resume_discontinuity" in sure(
        make([2.0, 2.02, 2.9, 2.8], steps, marks=[mark("resume", 25)]), "resume_discontinuity"
    )
    assert not sure(make([2.0, 2.02, 2.2, 2.1], steps, marks=[mark("resume", 25)]), "resume_discontinuity")
