"""Weight versions: digests, full copies, deltas, probe cards and the files beside the weights.

`digests`, `manifest`, `model_files` and `probe` run on the standard library, so that the hub can use them; `tensors`,
`full` and the delta codec need numpy or torch and are imported by trainer and worker only.
"""
