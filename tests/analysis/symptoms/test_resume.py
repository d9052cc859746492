import numpy as np

from symptoms.build import curve, found, make, mark, sure


def test_a_jump_that_stays():
    steps, losses = curve(300, end=3.3)
    losses[200:] += 0.3
    assert "resume_discontinuity" in sure(make(losses, steps, marks=[mark("resume", 200)]), "resume")


def test_a_rate_that_jumped_is_the_schedule():
    steps, losses = curve(300, end=3.3)
    losses[200:] += 0.3
    rate = np.where(np.arange(300) < 200, 6e-5, 6e-4)
    finding = found(make(losses, steps, rate=rate, marks=[mark("resume", 200)]), "resume")["resume_discontinuity"]
    assert len(finding.evidence) == 2


def test_a_resume_without_a_jump_is_fine():
    for seed in range(20):
        steps, losses = curve(300, end=3.3, noise=0.1, seed=seed)
        assert not sure(make(losses, steps, marks=[mark("resume", 200)]), "resume"), seed
