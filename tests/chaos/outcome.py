"""What became of a run in a directory."""

from tests.chaos.history import judge
from tests.chaos.trainer_process import read_applied

__all__ = ["problems_of", "tails"]

_LAST_LINES = 12


def problems_of(directory, settings, events):
    """What the judge says of a finished run.

    Args:
        directory: The run directory.
        settings: Of its trainer.
        events: Of its history.
    """
    return judge(
        events,
        read_applied(directory),
        total_steps=settings.total_steps,
        max_lag=settings.max_lag,
        samples_per_step=settings.groups_per_step * settings.group_size,
    )


def tails(directory):
    """The last lines of every log."""
    return "\n".join(
        f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-_LAST_LINES:])
        for path in sorted(directory.glob("*.log"))
    )
