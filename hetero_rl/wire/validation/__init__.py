"""Checks of values that came over the network, before anything of them is stored.

Conversion has made sure that a message is well formed; here it is held against what only the receiver knows: limits,
vocabulary, the leased work, the published versions. Every refusal is an `InvalidMessageError` that names field and value
and carries the `RefusalReason` that the sender is told.
"""

from hetero_rl.wire.validation.requests import check_join_request, check_prompt_group, check_run_request
from hetero_rl.wire.validation.submissions import check_submission
from hetero_rl.wire.validation.weights import check_blob_reference, check_manifest, check_probe_card

__all__ = [
    "check_blob_reference",
    "check_join_request",
    "check_manifest",
    "check_probe_card",
    "check_prompt_group",
    "check_run_request",
    "check_submission",
]
