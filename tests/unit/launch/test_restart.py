from hetero_rl.launch.restart import PERMANENT_EXIT_CODE, RestartPolicy

POLICY = RestartPolicy(max_restarts=4, first_delay=1.0, longest_delay=5.0, healthy_after=60.0)


def test_delays_double_up_to_a_bound_and_then_it_is_given_up():
    assert [POLICY.delay(deaths, exit_code=1) for deaths in range(1, 6)] == [1.0, 2.0, 4.0, 5.0, None]


def test_an_error_that_another_start_would_meet_again_is_given_up_at_once():
    assert POLICY.delay(1, PERMANENT_EXIT_CODE) is None


def test_deaths_in_a_row_add_up():
    assert POLICY.deaths_after(2, lifetime=59.0) == 3


def test_a_healthy_life_forgives_earlier_deaths():
    assert POLICY.deaths_after(2, lifetime=60.0) == 1
