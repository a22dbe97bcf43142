"""The reference engine: Hugging Face transformers on any torch device.

engine.py     the `Engine` interface on the event loop
scheduler.py  the thread that owns the model: admits, decodes, scores, swaps weights
rows.py       the running completions as columns of tensors, one decoding step at a time
cache.py      keys and values of the running completions, one slot each
forward.py    the model's forward pass in the three forms that are needed
sampling.py   from logits to tokens and log-probabilities
model.py      building the model and replacing its weights in place
probe.py      the check at start: cached decoding equals a plain forward pass
numerics.py   what the numbers depend on
emulation.py  the data types of other chips, imitated
"""

from hetero_rl.worker.engines.transformers.engine import TransformersEngine

__all__ = ["TransformersEngine"]
