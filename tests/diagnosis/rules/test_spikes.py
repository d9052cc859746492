from tests.diagnosis.rules.build import curve, found, make, sure


def test_a_jump_that_comes_back_is_told_and_is_no_fault():
    steps, losses = curve(400, end=3.5)
    losses[300] += 2.0
    findings = found(make(losses, steps), "loss_spike")
    assert findings["loss_spike"].sureness == "possible"
    assert findings["loss_spike"].evidence[0].at_step == 301


def test_noise_has_no_spikes():
    for seed in range(20):
        steps, losses = curve(500, noise=0.1, seed=seed)
        assert not found(make(losses, steps), "loss_spike"), seed
        assert "healthy" in sure(make(losses, steps)), seed
