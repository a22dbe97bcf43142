"""What the hub does about rows that were damaged on its disk: tells people, and has completions generated again."""

import dataclasses
import logging

from hetero_rl.hub.handlers.context import HubContext, Topic
from hetero_rl.hub.stores.records import GroupRow, GroupState
from hetero_rl.wire.messages import Purpose

__all__ = ["generate_again", "note_damage"]

_logger = logging.getLogger(__name__)


def note_damage(context: HubContext) -> None:
    """Tells whoever watches the run which rows were passed over."""
    for what in context.store.take_damage():
        message = f"{what}: the journal holds other bytes than were stored; they are not used"
        _logger.error("%s", message)
        context.store.count("journal_rows_damaged")
        context.event("journal_damaged", message)


def generate_again(context: HubContext, row: GroupRow, whole: int) -> None:
    """Puts a finished group, of whose completions some were damaged, back into the queue without any.

    A group that has a step keeps it, and its batch waits: nothing may take its place there without breaking the order in
    which groups were admitted.

    Args:
        context: The hub.
        row: The group.
        whole: How many of its completions are as they were stored.
    """
    admitted_step = row.admitted_step
    if row.purpose is Purpose.TRAIN and row.step:
        # Its step is certain now, so no older weights than that step allows may begin it.
        max_lag = context.known_run().request.max_lag
        admitted_step = max(admitted_step, row.step - 1 - max_lag)
    context.store.drop_completions(row.group_id)
    context.store.put_group(
        dataclasses.replace(
            row, state=GroupState.QUEUED, stored=0, oldest_step=-1, admitted_step=admitted_step
        )
    )
    context.store.count("groups_generated_again")
    message = (
        f"{row.group_size - whole} of {row.group_size} completions of group {row.group_id} are not as they were stored: "
        "the whole group is generated again"
    )
    _logger.error("%s", message)
    context.event("completions_damaged", message)
    context.notify(Topic.WORK)
