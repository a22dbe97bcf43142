"""The stages that every estimator is composed of, in the order in which they run.

edge -> level -> kernel -> normalise -> masks and shaper, beside advantages and aggregation. All are pure functions on
detached tensors; none knows a preset.
"""
