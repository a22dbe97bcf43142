"""The mismatch audit of a run: how much of log W is the chip and how much is staleness, and what the estimator did with it.

run_data.py    what a run keeps, read once into columns
split.py       log W by backend: chip, staleness, growth with length and time
weighing.py    what the estimator made of it, and what every other one would have
findings.py    what a person should know, and what to do
record.py      the whole as a value, as JSON, and back
"""
