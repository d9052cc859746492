"""A signal that the loop took as a wish to stop stops whoever called it, too."""

from __future__ import annotations

import os
import signal

import pytest

from nanolens.session.detach import raise_if_signalled


def test_ctrl_c_is_passed_on_and_a_termination_ends_with_its_code():
    raise_if_signalled(None)
    with pytest.raises(KeyboardInterrupt):
        raise_if_signalled(signal.SIGINT)
    with pytest.raises(SystemExit) as end:
        raise_if_signalled(signal.SIGTERM)
    assert end.value.code == 143


@pytest.mark.skipif(os.name == "nt", reason="signals are others there")
def test_ctrl_c_ends_a_selftest_within_its_check(monkeypatch: pytest.MonkeyPatch):
    from nanolens.measure import selftest as room

    seen = []

    def interrupted(bench):
        seen.append(1)
        raise_if_signalled(signal.SIGINT)

    monkeypatch.setattr(
        room, "_Bench", lambda device: type("Bench", (), {"machine": type("M", (), {"device": "cpu"}), "facts": dict})()
    )
    monkeypatch.setattr(room, "CHECKS", ((room.CHECKS[0][0], interrupted), (room.CHECKS[1][0], interrupted)))
    with pytest.raises(KeyboardInterrupt):
        room.selftest("cpu", lambda check: None)
    assert seen == [1]
