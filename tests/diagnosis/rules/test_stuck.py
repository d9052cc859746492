import numpy as np

from tests.diagnosis.rules.build import GPT2, char_curve, curve, make, sure


def flat(level, count=100, every=20, noise=0.03, seed=0):
    return np.arange(count) * every + 1, level + noise * np.random.default_rng(seed).standard_normal(count)


def test_a_loss_at_the_unigram_level_of_web_text():
    steps, losses = flat(7.55)
    assert "collapse_to_unigram" in sure(make(losses, steps, **GPT2), "collapse_to_unigram")


def test_characters_stuck_at_their_unigram_level():
    steps, losses = flat(3.33, every=5)
    assert "collapse_to_unigram" in sure(make(losses, steps, dataset="shakespeare_char"), "collapse_to_unigram")


def test_a_run_that_passes_the_level_is_sound():
    for count in (12, 20, 60, 200):
        steps, losses = curve(count, end=6.5)
        assert not sure(make(losses, steps, **GPT2), "collapse_to_unigram"), count


def test_25_updates_around_7_7_mean_nothing():
    losses = np.r_[10.97, 10.1, 9.6, 9.3, 8.9, 8.5, 8.2, 8.0, 8.1, 7.8, 7.6, 8.0, 7.5, 7.7, 7.7, 7.66, 7.88]
    assert not sure(make(losses, **GPT2), "collapse_to_unigram")


def test_thousands_of_steps_at_the_bigram_level():
    evals = [(500 * i, 2.47 - 0.003 * i, 2.49 - 0.003 * i) for i in range(1, 12)]
    assert "bigram_plateau" in sure(make(evals=evals, dataset="tiny shakespeare (char)"), "collapse_to_unigram")


def test_a_run_that_goes_through_the_bigram_level_is_sound():
    for end in (1.4, 1.9, 2.2):
        steps, losses = char_curve(end=end, count=200)
        assert not sure(make(losses, steps, dataset="shakespeare_char"), "collapse_to_unigram"), end


def test_a_short_run_that_ends_near_the_level_while_falling_is_sound():
    steps, losses = char_curve(40, end=2.4, every=10)
    assert not sure(make(losses, steps, dataset="shakespeare_char"), "collapse_to_unigram")


def test_the_approach_to_the_unigram_level_is_no_progress():
    steps = [0, 120, 240, 360, 600, 1200, 2400, 3600]
    run = make([10.9, 7.93, 7.71, 7.62, 7.58, 7.57, 7.55, 7.58], steps, **GPT2)
    assert "collapse_to_unigram" in sure(run, "collapse_to_unigram")


def test_a_run_on_its_way_out_of_the_level_is_not_stuck():
    steps = np.arange(1, 11) * 300
    assert not sure(make(np.linspace(7.95, 7.32, 10), steps, **GPT2), "collapse_to_unigram")
