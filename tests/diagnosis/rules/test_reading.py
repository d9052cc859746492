from nanolens.record.run import Reading
from tests.diagnosis.rules.build import make, sure


def test_repeated_lines_are_told():
    assert "duplicate_lines" in sure(make([3.0, 2.9], reading=Reading(lines=10, duplicates=3)), "duplicate_lines")
    assert not sure(make([3.0, 2.9], reading=Reading(lines=10)), "duplicate_lines")
