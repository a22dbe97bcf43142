"""Named places at which a role may be killed."""

__all__ = ["HUB_FAILPOINTS", "TRAINER_FAILPOINTS"]

# How often a place is passed before it kills, at most: about as often as a campaign passes it in a second.
_HUB_CALLS = {
    "submit_results": 60,
    "lease_work": 12,
    "take_batch": 3,
    "commit_step": 2,
    "publish_version": 2,
    "enqueue_groups": 2,
    "commit_checkpoint": 1,
    "join": 1,
}
HUB_FAILPOINTS = {
    **{f"before_commit:{name}": most for name, most in _HUB_CALLS.items()},
    **{f"after_commit_before_sync:{name}": most for name, most in _HUB_CALLS.items()},
    **{f"after_commit_before_ack:{name}": most for name, most in _HUB_CALLS.items()},
    "blob.before_rename": 2,
    "blob.after_rename": 2,
}
TRAINER_FAILPOINTS = (
    "trainer.before_checkpoint",
    "trainer.after_checkpoint",
    "trainer.before_commit",
    "trainer.after_commit",
    "trainer.before_publish",
    "trainer.after_publish",
    "trainer.after_commit_checkpoint",
)
