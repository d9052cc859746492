"""One line an epoch: read as evaluations, with the epoch as the step and said to be one."""

from __future__ import annotations

import pytest

from nanolens.logs import read_log

TRAIN, VAL = (3.0, 2.5, 2.1, 1.8), (3.1, 2.8, 2.7, 2.9)

FORMS = (
    "Epoch {n}: train loss {t}, val loss {v}\n",
    "Epoch {n}/4, Train Loss: {t}, Val Loss: {v}\n",
    "epoch {n} | train_loss {t} | val_loss {v} | lr 1.0e-04\n",
    "Epoch [{n}/4] Train Loss: `{t}` | Val Loss: `{v}`\n",
)


@pytest.mark.parametrize("form", FORMS)
def test_a_line_an_epoch(form):
    run = read_log("".join(form.format(n=n, t=t, v=v) for n, t, v in zip(range(1, 5), TRAIN, VAL, strict=True)))
    assert run.evals.step.tolist() == [1, 2, 3, 4]
    assert run.evals.train.tolist() == list(TRAIN) and run.evals.val.tolist() == list(VAL)
    assert run.get("steps_are_epochs") is True


def test_a_bar_below_the_head_of_its_epoch_says_how_many_updates_it_has():
    form = "Epoch {n}/4\n900/900 [=========] - 9s 5ms/step - loss: {t} - val_loss: {v}\n"
    run = read_log("".join(form.format(n=n, t=t, v=v) for n, t, v in zip(range(1, 5), TRAIN, VAL, strict=True)))
    assert run.evals.step.tolist() == [900, 1800, 2700, 3600]
    assert run.evals.train.tolist() == list(TRAIN) and run.evals.val.tolist() == list(VAL)


def test_epochs_by_the_hundred_are_iterations():
    run = read_log("".join(f"Epoch {100 * n}: train loss {3 - n / 10}, val loss {3 - n / 20}\n" for n in range(1, 6)))
    assert run.evals.step.tolist() == [100, 200, 300, 400, 500] and run.get("steps_are_epochs") is None


def test_evaluations_in_other_words_beside_known_rows():
    rows = "".join(f"iter {k}: loss {4 - k / 100:.4f}, time 30.00ms, mfu 10.00%\n" for k in range(0, 100, 10))
    run = read_log(rows + "Step 100: val loss 3.1000\n" + rows.replace("iter ", "iter 1"))
    assert run.evals.val.tolist() == [3.1] and len(run.steps) > 10
