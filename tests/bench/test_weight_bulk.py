"""Bytes in bulk are measured between real servers."""

import importlib.util

import pytest

from hetero_rl.bench.weight_bulk import bulk_figures


@pytest.mark.slow
def test_the_hub_is_compared_with_bare_grpc_and_with_flight_where_it_is_installed():
    figures = {figure.name: figure for figure in bulk_figures(quick=True)}
    assert figures["cpu_per_gb_over_grpc"].value > 0.5
    assert figures["cpu_seconds_per_gb"].value > 0
    with_flight = importlib.util.find_spec("pyarrow") is not None
    assert ("cpu_per_gb_over_flight" in figures) is with_flight
    assert ("grpc_cpu_per_gb_over_flight" in figures) is with_flight
