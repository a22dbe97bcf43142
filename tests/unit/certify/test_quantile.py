import pytest

from hetero_rl.certify.checks import chi_squared_limit


@pytest.mark.parametrize(("degrees", "quantile"), [(8, 31.83), (15, 44.26), (30, 66.62), (100, 161.32)])
def test_the_limit_is_the_99_99_percent_quantile_of_the_chi_squared_distribution(degrees, quantile):
    assert chi_squared_limit(degrees) == pytest.approx(quantile, rel=0.02)
