"""The page of an audit. Values in, page out."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from hetero_rl.audit.record import Audit
from hetero_rl.audit.split import BackendSplit
from hetero_rl.hub.journal_reader import Sample
from hetero_rl.reports.blocks import (
    Axis,
    Block,
    Cell,
    Column,
    Page,
    Paragraph,
    Plot,
    Section,
    Series,
    Table,
    TokenStrip,
    TokenValue,
)

__all__ = ["audit_page", "worst_samples"]

_NATS = "nats"
_STEPS = Axis("optimizer step", "steps")
_MOST_TOKENS = 400


def audit_page(audit: Audit, worst: Sequence[Sample], decode: Callable[[int], str]) -> Page:
    """The page.

    Args:
        audit: What was found.
        worst: Sequences to show token by token (`worst_samples`).
        decode: Text of a token id.
    """
    whole = audit.splits[0]
    return Page(
        title=f"Mismatch audit of run {audit.run_id}",
        first_line=audit.first_line,
        findings=audit.findings,
        summary=(
            ("Made", audit.made_at),
            ("Steps", f"{audit.committed_step} of {audit.total_steps}, lag at most {audit.max_lag}"),
            ("Trajectories", f"{whole.sequences}, {whole.tokens} tokens; tokens of {audit.samples} are kept"),
            ("Workers", ", ".join(_worker(worker) for worker in audit.workers)),
        ),
        sections=[
            _overview(audit),
            *(_backend_section(split) for split in audit.splits),
            _weighing_section(audit),
            _alternatives_section(audit),
            _worst_section(worst, decode),
            _incident_section(audit),
            _provenance_section(audit),
        ],
    )


def worst_samples(samples: Sequence[Sample], count: int) -> list[Sample]:
    """Those with the largest gap of a token."""
    return sorted(samples, key=lambda sample: -float(np.abs(_gaps(sample)).max(initial=0.0)))[:count]


def _gaps(sample: Sample) -> np.ndarray:
    trainer = np.frombuffer(sample.trainer_log_probs or b"", "<f4").astype(np.float64)
    worker = np.frombuffer(sample.log_probs or b"", "<f4").astype(np.float64)
    return trainer - worker if len(trainer) == len(worker) else np.zeros(0)


def _worker(worker: dict[str, object]) -> str:
    state = "calibrated" if worker["calibrated"] else "uncalibrated"
    return f"{worker['name']} ({worker['backend']}, {state})"


def _overview(audit: Audit) -> Section:
    columns = (
        Column("backend"),
        Column("trajectories"),
        Column("mean length", "tokens"),
        Column("mean log W", _NATS),
        Column("variance of log W", "nats²"),
        Column("chip part", "%"),
        Column("staleness part", "%"),
        Column("by"),
        Column("effective share"),
        Column("probe cards"),
        Column("mean |difference| on them", _NATS),
        Column("bias", _NATS),
        Column("worst token", _NATS),
    )
    rows: list[list[Cell]] = [
        [
            split.backend or "all",
            split.sequences,
            split.mean_length,
            split.mean_log_ratio,
            split.variance,
            _percent(split.chip_share),
            _percent(1 - split.chip_share),
            split.witness,
            split.effective_share,
            split.probes,
            _number(split.probe_mean_gap),
            _number(split.probe_bias),
            _number(split.worst_probe),
        ]
        for split in audit.splits
    ]
    return Section(
        "log W by backend",
        [
            Paragraph(
                "log W = log pi/mu of a whole sequence: how far the trainer's policy is from what was sampled from. Part of it is the chip (the same "
                "weights give other numbers elsewhere), part staleness (the weights have moved on)."
            ),
            Table("log W, split", columns, rows),
            *(Paragraph(statement) for statement in audit.statements),
        ],
    )


def _backend_section(split: BackendSplit) -> Section:
    blocks: list[Block] = [_time_plot(split), _variance_plot(split), _length_plot(split), _lag_table(split)]
    if split.exact is not None:
        exact = split.exact
        blocks.insert(
            0,
            Paragraph(
                f"pi_old was recomputed for {exact.sequences} sequences: chip variance {exact.chip_variance:.3g}, staleness variance "
                f"{exact.staleness_variance:.3g}, cross term {2 * exact.covariance:.3g} nats²; means {exact.chip_mean:.3g} and "
                f"{exact.staleness_mean:.3g} nats."
            ),
        )
    return Section(f"Backend {split.backend}" if split.backend else "All backends", blocks)


def _time_plot(split: BackendSplit) -> Plot:
    steps = [float(row.last_step) for row in split.over_time]
    return Plot(
        title="Gap of a token over the run",
        x=_STEPS,
        y=Axis("mean |log pi - log mu|", _NATS, logarithmic=True),
        series=(
            Series(
                name="trained sequences: chip and staleness",
                xs=steps,
                ys=[row.mean_absolute_gap for row in split.over_time],
            ),
            Series(name="probe cards: chip alone", xs=steps, ys=[row.probe_gap for row in split.over_time]),
        ),
        note="The distance between the two is staleness. Probe cards are scored at lag 0 after every weight update.",
    )


def _variance_plot(split: BackendSplit) -> Plot:
    steps = [float(row.last_step) for row in split.over_time]
    return Plot(
        title="Effective share of the raw weights over the run",
        x=_STEPS,
        y=Axis("effective share", "1"),
        series=(
            Series(name="mean over steps", xs=steps, ys=[row.effective_share for row in split.over_time]),
        ),
        note="(sum W)² / (n sum W²) within a step: 1 when all sequences count alike.",
    )


def _length_plot(split: BackendSplit) -> Plot:
    lengths = [row.mean_length for row in split.lengths]
    return Plot(
        title="Variance of log W against length",
        x=Axis("completion length", "tokens"),
        y=Axis("variance of log W", "nats²", logarithmic=True),
        series=(
            Series(name="measured", xs=lengths, ys=[row.variance for row in split.lengths]),
            Series(name="chip part", xs=lengths, ys=[row.chip_variance for row in split.lengths]),
        ),
    )


def _lag_table(split: BackendSplit) -> Table:
    columns = (
        Column("lag", "steps"),
        Column("trajectories"),
        Column("mean length", "tokens"),
        Column("mean log W", _NATS),
        Column("variance of log W", "nats²"),
        Column("of it chip", "nats²"),
        Column("mean |gap| of a token", _NATS),
        Column("effective share"),
    )
    rows: list[list[Cell]] = [
        [
            row.lag,
            row.sequences,
            row.mean_length,
            row.mean_log_ratio,
            row.variance,
            _number(row.chip_variance),
            row.mean_absolute_gap,
            row.effective_share,
        ]
        for row in split.lags
    ]
    return Table("By lag", columns, rows)


def _weighing_section(audit: Audit) -> Section:
    columns = (
        Column("backend"),
        Column("advantage"),
        Column("trajectories"),
        Column("mean coefficient"),
        Column("effective share"),
        Column("silenced", "%"),
        Column("mean log W", _NATS),
    )
    rows: list[list[Cell]] = [
        [
            weighing.backend or "all",
            row.sign,
            row.sequences,
            row.mean_coefficient,
            row.effective_share,
            100 * row.silenced,
            row.mean_log_ratio,
        ]
        for weighing in audit.weighings
        for row in weighing.signs
    ]
    totals: list[list[Cell]] = [
        [
            weighing.backend or "all",
            weighing.sequences_per_step,
            weighing.effective_sequences,
            100 * weighing.silenced,
            _number(weighing.pareto_shape),
            ", ".join(f"{name} {count}" for name, count in weighing.dispositions.items()),
        ]
        for weighing in audit.weighings
    ]
    total_columns = (
        Column("backend"),
        Column("trajectories per step"),
        Column("effective ones"),
        Column("silenced", "%"),
        Column("k-hat of W"),
        Column("what was done"),
    )
    return Section(
        "What the estimator did",
        [
            Table("By backend", total_columns, totals),
            Table("By sign of the advantage", columns, rows),
            Paragraph(
                "k-hat is the shape of the tail of the raw weights: above 0.7 their mean cannot be trusted."
            ),
        ],
    )


def _alternatives_section(audit: Audit) -> Section:
    if not audit.alternatives:
        return Section(
            "Other estimators on the same data", [Paragraph("No tokens are kept to recompute them on.")]
        )
    columns = (
        Column("estimator"),
        Column("mean coefficient, A >= 0"),
        Column("mean coefficient, A < 0"),
        Column("effective share"),
        Column("silenced", "%"),
        Column("held within bounds", "%"),
        Column("note"),
    )
    rows: list[list[Cell]] = [
        [
            one.estimator,
            _number(one.mean_positive),
            _number(one.mean_negative),
            _number(one.effective_share),
            _percent(one.silenced),
            _percent(one.clamped),
            one.note,
        ]
        for one in audit.alternatives
    ]
    return Section(
        "Other estimators on the same data",
        [
            Paragraph(
                f"Each with its paper's defaults, recomputed on the {audit.samples} sequences whose tokens are kept, under the policy that trained "
                "on each of them."
            ),
            Table("Side by side", columns, rows),
        ],
    )


def _worst_section(worst: Sequence[Sample], decode: Callable[[int], str]) -> Section:
    if not worst:
        return Section("Where it differs most", [Paragraph("No tokens are kept.")])
    return Section("Where it differs most", [_strip(sample, decode) for sample in worst])


def _strip(sample: Sample, decode: Callable[[int], str]) -> TokenStrip:
    ids = np.frombuffer(sample.token_ids, "<i4").tolist()
    gaps = _gaps(sample).tolist()
    outcome = sample.outcome
    facts = f", lag {outcome.lag}, log W {outcome.log_importance_ratio:.3g}" if outcome is not None else ""
    return TokenStrip(
        f"step {sample.step}, group {sample.group_id}, sample {sample.sample_index}, {sample.worker_name} ({sample.backend}){facts}",
        [
            TokenValue(decode(token), abs(gap), f"trainer minus worker {gap:+.4f} nats")
            for token, gap in zip(ids[:_MOST_TOKENS], gaps, strict=False)
        ],
    )


def _incident_section(audit: Audit) -> Section:
    counts: list[list[Cell]] = [[kind, count] for kind, count in audit.event_counts.items()]
    counters: list[list[Cell]] = [[name, count] for name, count in sorted(audit.counters.items())]
    incidents: list[list[Cell]] = [list(incident) for incident in audit.incidents]
    return Section(
        "Incidents",
        [
            Table("Events by kind", (Column("kind"), Column("times")), counts),
            Table("Counters", (Column("counter"), Column("value")), counters),
            Table(
                "What was more than coming and going",
                (Column("time"), Column("kind"), Column("worker"), Column("message")),
                incidents,
                collapsed=True,
            ),
        ],
    )


def _provenance_section(audit: Audit) -> Section:
    rows: list[list[Cell]] = []
    for worker in audit.workers:
        rows += [[str(worker["name"]), "software version", str(worker["software_version"])]]
        rows += [[str(worker["name"]), key, str(value)] for key, value in dict(worker["numerics"]).items()]
        rows += [[str(worker["name"]), "numerics id", str(worker["numerics_id"])]]
    return Section(
        "Provenance",
        [
            Paragraph(f"Trained with hetero-rl {audit.software_version}."),
            Table("Workers", (Column("worker"), Column("name"), Column("value")), rows),
            Table("Settings", (Column("settings"),), [[audit.config_json]], collapsed=True),
        ],
    )


def _number(value: float) -> Cell:
    return None if math.isnan(value) else value


def _percent(share: float) -> Cell:
    return None if math.isnan(share) else 100 * share
