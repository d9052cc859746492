from tests.diagnosis.rules.build import OURS, make, mark, sure


def warned(text, step=0):
    return make([4.0, 3.9, 3.8], conventions=OURS, marks=[mark("warned", step, text)])


def test_warnings_of_the_checks_before_the_first_step_are_findings():
    assert sure(warned("causal_leak: the model sees the future"), "frozen_parameters") == {"attention_bug"}
    assert sure(warned("val_leak: 100% of the val windows stand in the train split"), "frozen_parameters") == {
        "val_leak"
    }
    assert sure(warned("frozen_parameters: 8 of 12 tensors will never change"), "frozen_parameters") == {
        "frozen_parameters"
    }


def test_a_diagnosis_made_on_the_way_is_not_its_own_proof():
    assert not sure(
        warned("val_leak: the val split holds text that the model has trained on", step=200), "frozen_parameters"
    )
