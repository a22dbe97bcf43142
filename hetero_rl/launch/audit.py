"""From a run directory to the files of its audit."""

from collections.abc import Callable
from pathlib import Path

from hetero_rl.audit.record import Audit, audit_run, audit_text
from hetero_rl.audit.run_data import read_run
from hetero_rl.calibration.store import calibrated_ids
from hetero_rl.calibration.thresholds import Thresholds
from hetero_rl.errors import HeteroRLError
from hetero_rl.hub.journal_reader import JournalReader
from hetero_rl.launch.rundir import RunDirectory
from hetero_rl.reports.audit import audit_page, worst_samples
from hetero_rl.reports.page import render_page
from hetero_rl.reports.record import write_text

__all__ = ["make_audit"]

_WORST = 12


def make_audit(
    run: RunDirectory, *, html: Path | None, json_file: Path | None, thresholds: Thresholds | None = None
) -> tuple[Audit, list[Path]]:
    """Audits a run and writes what was asked for; returns the audit and the files.

    Raises:
        ConfigError: There is nothing to audit yet.
        StorageError: The journal cannot be read, or a file not written.
    """
    with JournalReader(run.journal) as reader:
        data = read_run(reader)
    digest = data.request.model_digests.config
    audit = audit_run(data, thresholds=thresholds, calibrated=calibrated_ids(digest, run.root))
    written = []
    if json_file is not None:
        write_text(json_file, audit_text(audit))
        written.append(json_file)
    if html is not None:
        page = audit_page(audit, worst_samples(data.samples, _WORST), _decoder(run))
        write_text(html, render_page(page))
        written.append(html)
    return audit, written


def _decoder(run: RunDirectory) -> Callable[[int], str]:
    """Text of a token id; the id itself where the run's tokenizer is gone: an old report must still be made."""
    from hetero_rl.launch.run_model import load_tokenizer, model_directory_of

    try:
        tokenizer = load_tokenizer(model_directory_of(run))
    except (HeteroRLError, OSError):
        return lambda token: f"<{token}>"
    return lambda token: str(tokenizer.decode([token], clean_up_tokenization_spaces=False))
