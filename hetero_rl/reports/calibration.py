"""The page of a calibration. Values in, page out."""

from collections.abc import Callable, Sequence

from hetero_rl.calibration.analysis import Pair
from hetero_rl.calibration.record import Calibration
from hetero_rl.calibration.statistics import QUANTILES, Bin, GapSummary
from hetero_rl.calibration.usable_length import LONGEST
from hetero_rl.reports.blocks import (
    Axis,
    Block,
    Cell,
    Column,
    Page,
    Paragraph,
    Plot,
    Rule,
    Section,
    Series,
    Table,
)

__all__ = ["calibration_page"]

_GAP = "nats"


def calibration_page(calibration: Calibration, decode: Callable[[int], str]) -> Page:
    """The page.

    Args:
        calibration: What was found.
        decode: Text of a token id.
    """
    return Page(
        title=f"Calibration of {', '.join(calibration.numerics)} on {calibration.model}",
        first_line=calibration.first_line,
        findings=calibration.findings,
        summary=(
            ("Made", calibration.made_at),
            ("Command", calibration.command),
            ("Model", f"{calibration.model}, configuration {calibration.model_digest[:16]}"),
            ("Weights", f"{calibration.state_digest[:16]}, checked by digest on every side"),
            (
                "Run",
                (
                    f"{calibration.estimator}, completions of at most {calibration.longest} tokens, effective share of at least "
                    f"{calibration.thresholds.ess_floor:g}"
                ),
            ),
        ),
        sections=[
            _overview(calibration),
            *(_pair_section(pair, calibration, decode) for pair in calibration.pairs),
            _provenance(calibration),
        ],
    )


def _overview(calibration: Calibration) -> Section:
    columns = (
        Column("second"),
        Column("first"),
        Column("data type"),
        Column("tokens"),
        Column("mean gap", _GAP),
        Column("sd", _GAP),
        Column("mean |gap|", _GAP),
        *(Column(f"p{100 * quantile:g}", _GAP) for quantile in QUANTILES),
        Column("max", _GAP),
        Column("k1", _GAP),
        Column("k3", _GAP),
        Column("Pearson", digits=6),
    )
    rows = [
        [pair.second, pair.first, pair.data_type, *_summary_cells(pair.summary)] for pair in calibration.pairs
    ]
    return Section(
        "All pairs",
        [
            Paragraph(
                "The gap is the first one's log-probability minus the second one's, of the same tokens under the same weights: "
                "what a token adds to log W. k1 and k3 estimate the divergence where the second one sampled."
            ),
            Table("Gap of every pair, over all sequences", columns, rows),
        ],
    )


def _summary_cells(summary: GapSummary) -> list[Cell]:
    return [
        summary.tokens,
        summary.mean,
        summary.sd,
        summary.mean_absolute,
        *summary.quantiles,
        summary.maximum,
        summary.k1,
        summary.k3,
        summary.pearson,
    ]


def _pair_section(pair: Pair, calibration: Calibration, decode: Callable[[int], str]) -> Section:
    blocks: list[Block] = []
    if pair.law is not None:
        blocks += [
            _law_plot(pair),
            _share_plot(pair, calibration),
            _coefficient_plot(pair),
            _usable_table(pair),
        ]
    if pair.held_out:
        blocks.append(_held_out_table(pair))
    blocks += [
        _bin_plot(
            "Gap by position in the text", Axis("position", "tokens", logarithmic=True), pair.positions
        ),
        _bin_plot(
            "Gap by probability of the token", Axis("probability", "1", logarithmic=True), pair.probabilities
        ),
    ]
    if pair.entropies:
        blocks.append(
            _bin_plot(
                "Gap by entropy of the trainer's distribution",
                Axis("entropy", _GAP, logarithmic=True),
                pair.entropies,
            )
        )
    blocks.append(_source_table(pair))
    if pair.behaviour is not None:
        blocks.append(_behaviour_table(pair))
    blocks.append(_token_table(pair, decode))
    return Section(f"{pair.second} against {pair.first}", blocks)


def _law_plot(pair: Pair) -> Plot:
    law = pair.law
    if law is None:
        raise AssertionError("only pairs with a law come here")
    lengths = [float(point.length) for point in law.points]
    variances = [point.variance for point in law.points]
    return Plot(
        title="Variance of log W against length",
        x=Axis("length", "tokens"),
        y=Axis("variance of log W", "nats²"),
        series=(
            Series(
                name="measured, with 90 % bounds over sequences",
                xs=lengths,
                ys=[one.value for one in variances],
                lows=[one.low for one in variances],
                highs=[one.high for one in variances],
            ),
            Series(name="fitted law", xs=lengths, ys=[law.variance(length) for length in lengths]),
        ),
        note=f"Per token: diffusion {law.diffusion.value:.3g} nats² ({law.diffusion.low:.3g} to {law.diffusion.high:.3g}), drift "
        f"{law.drift.value:.3g} nats ({law.drift.low:.3g} to {law.drift.high:.3g}), common {law.common.value:.3g} nats² per "
        f"token²; from {law.sequences} sequences.",
    )


def _share_plot(pair: Pair, calibration: Calibration) -> Plot:
    measured = Series(
        name="raw weights, measured",
        xs=[float(length) for length in pair.measured_lengths],
        ys=pair.measured_shares,
        style="points",
    )
    curves = [
        Series(
            name=f"{curve.estimator}{_sign(curve.estimator, curve.advantage)}, predicted",
            xs=[float(length) for length in curve.lengths],
            ys=curve.effective_shares,
        )
        for curve in pair.curves
        if curve.advantage > 0 or curve.estimator == "vespo"
    ]
    return Plot(
        title="Effective share of the sequences against length",
        x=Axis("length", "tokens", logarithmic=True),
        y=Axis("effective share", "1"),
        series=(*curves, measured),
        rules=(Rule("floor", calibration.thresholds.ess_floor),),
        note="(sum c)² / (n sum c²) of an estimator's coefficients: 1 when all sequences count alike.",
    )


def _coefficient_plot(pair: Pair) -> Plot:
    return Plot(
        title="Mean VESPO coefficient against length",
        x=Axis("length", "tokens", logarithmic=True),
        y=Axis("mean coefficient", "1"),
        series=tuple(
            Series(
                name="A >= 0" if curve.advantage > 0 else "A < 0",
                xs=[float(length) for length in curve.lengths],
                ys=curve.mean_coefficients,
            )
            for curve in pair.curves
            if curve.estimator == "vespo"
        ),
        note="Adam hides a uniform shrink of the gradient; this number does not.",
    )


def _usable_table(pair: Pair) -> Table:
    rows: list[list[Cell]] = [
        [
            f"{one.estimator}{_sign(one.estimator, one.advantage)}",
            _tokens(one.tokens),
            _tokens(one.low),
            _tokens(one.high),
        ]
        for one in pair.usable
    ]
    crossing = "not within what was sampled" if pair.measured_crossing is None else pair.measured_crossing
    rows.append(["raw weights, as measured", crossing, None, None])
    floor = pair.usable[0].floor if pair.usable else 0.0
    columns = (
        Column("estimator"),
        Column("usable length", "tokens"),
        Column("from", "tokens"),
        Column("to", "tokens"),
    )
    return Table(f"Usable length at an effective share of {floor:g}, with 90 % bounds", columns, rows)


def _held_out_table(pair: Pair) -> Table:
    columns = (
        Column("floor", "effective share"),
        Column("predicted", "tokens"),
        Column("measured", "tokens"),
        Column("error", "%"),
    )
    rows: list[list[Cell]] = [
        [one.floor, round(one.predicted), round(one.measured), round(100 * one.error)]
        for one in pair.held_out
    ]
    first = pair.held_out[0]
    return Table(
        f"Where raw weights cross a floor: predicted from {first.fitted_tokens} tokens of one half of {first.sequences} "
        "sequences, measured in the other half, both ways round",
        columns,
        rows,
    )


def _tokens(count: int) -> Cell:
    return f"≥ {LONGEST}" if count >= LONGEST else count


def _sign(estimator: str, advantage: int) -> str:
    if estimator == "seq_is":
        return ""
    return ", A >= 0" if advantage > 0 else ", A < 0"


def _bin_plot(title: str, axis: Axis, bins: Sequence[Bin]) -> Plot:
    # Drawn at the middle of its bounds, on the axis' own scale; the first bin begins at 0 and the last may be open.
    xs = [_middle(one) for one in bins]
    return Plot(
        title=title,
        x=axis,
        y=Axis("|gap|", _GAP, logarithmic=True),
        series=(
            Series(name="mean |gap|", xs=xs, ys=[one.mean_absolute for one in bins]),
            Series(name="p99 of |gap|", xs=xs, ys=[one.p99 for one in bins]),
            Series(name="largest", xs=xs, ys=[one.maximum for one in bins], style="points"),
        ),
        note=f"{sum(one.tokens for one in bins)} tokens in {len(bins)} bins.",
    )


def _middle(one: Bin) -> float:
    if one.low <= 0:
        return one.high / 2
    if one.high == float("inf"):
        return one.low * 1.5
    return float((one.low * one.high) ** 0.5)


def _source_table(pair: Pair) -> Table:
    columns = (
        Column("written by"),
        Column("temperature"),
        Column("tokens"),
        Column("mean gap", _GAP),
        Column("mean |gap|", _GAP),
        Column("p99.9", _GAP),
        Column("max", _GAP),
    )
    rows: list[list[Cell]] = [
        [
            source.source,
            source.temperature,
            source.summary.tokens,
            source.summary.mean,
            source.summary.mean_absolute,
            source.summary.quantiles[-1],
            source.summary.maximum,
        ]
        for source in pair.sources
    ]
    for name, edge in (("first sampled token", pair.first_token), ("last sampled token", pair.last_token)):
        if edge is not None:
            rows.append(
                [name, None, edge.tokens, edge.mean, edge.mean_absolute, edge.quantiles[-1], edge.maximum]
            )
    return Table("Gap by who wrote the tokens, and at the edges of completions", columns, rows)


def _behaviour_table(pair: Pair) -> Table:
    behaviour = pair.behaviour
    if behaviour is None:
        raise AssertionError("only pairs with a behaviour come here")
    rows: list[list[Cell]] = [
        [name, one.tokens, one.mean_absolute, one.maximum]
        for name, one in (
            ("run to run: the same request twice", behaviour.repeat),
            ("alone against batched", behaviour.batch),
            ("decode against prefill: sampled and scored", behaviour.decode),
            ("before and after A, B, A", behaviour.returned),
        )
    ]
    columns = (
        Column("comparison"),
        Column("tokens"),
        Column("mean |difference|", _GAP),
        Column("largest", _GAP),
    )
    return Table(f"{pair.second} against itself", columns, rows)


def _token_table(pair: Pair, decode: Callable[[int], str]) -> Table:
    columns = (
        Column("token"),
        Column("id"),
        Column("seen"),
        Column("mean gap", _GAP),
        Column("mean |gap|", _GAP),
        Column("max", _GAP),
    )
    rows: list[list[Cell]] = [
        [repr(decode(one.token_id)), one.token_id, one.tokens, one.mean, one.mean_absolute, one.maximum]
        for one in pair.worst_tokens
    ]
    return Table("Tokens with the largest mean |gap|", columns, rows, collapsed=True)


def _provenance(calibration: Calibration) -> Section:
    rows: list[list[Cell]] = [
        [name, key, str(value)]
        for name, record in calibration.numerics.items()
        for key, value in record.items()
    ]
    settings: list[list[Cell]] = [
        [kind, field, str(getattr(values, field))]
        for kind, values in (("plan", calibration.plan), ("threshold", calibration.thresholds))
        for field in type(values).__dataclass_fields__
    ]
    columns = (Column("of"), Column("name"), Column("value"))
    return Section(
        "Provenance",
        [Table("Numerics records", columns, rows), Table("Settings", columns, settings, collapsed=True)],
    )
