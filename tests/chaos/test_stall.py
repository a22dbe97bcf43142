"""What counts as growth is what comes after the warm-up. `make test-stall` measures."""

from tests.chaos.stall import growth


def test_growth_is_of_the_largest_at_the_end_against_the_largest_of_the_first_fifth():
    (found,) = growth("p", {"hub": [50.0, 100.0, 90.0, 95.0, 97.0, 99.0, 104.0, 101.0, 110.0, 80.0]})
    assert (found.role, found.before, found.after) == ("hub", 100.0, 110.0)
    assert round(found.share, 6) == 0.1


def test_a_role_that_shrinks_has_a_negative_growth():
    (found,) = growth("p", {"hub": [100.0, 50.0]})
    assert found.share == -0.5
