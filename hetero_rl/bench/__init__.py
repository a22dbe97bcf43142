"""Benchmarks that a user runs on the own machine: `hetero-rl bench NAME [--json FILE]`.

Every figure is a ratio to a baseline measured in the same run, or a count that no machine changes; `schema` is what all
of them write, `timing` how they measure, `registry` which there are.
"""
