import pytest

from hetero_rl.reports.blocks import (
    Axis,
    Column,
    Page,
    Paragraph,
    Plot,
    Rule,
    Section,
    Series,
    Table,
    TokenStrip,
    TokenValue,
    plot_table,
)
from hetero_rl.reports.findings import Finding, Verdict, first_line, worst_verdict
from hetero_rl.reports.inspection import broken_promises
from hetero_rl.reports.page import render_page
from hetero_rl.reports.plots import render_plot

HOSTILE = "</style></svg><script>alert(1)</script><img src=x onerror=alert(1)>\" ' & \x00\x1b[31m\u202e"


def finding(text="bf16 on the wire", verdict=Verdict.CAUTION):
    return Finding(
        verdict=verdict, code="x", cause=text, evidence=(text, "0.1 nats"), next_step=text, subject="rocm"
    )


def plot(name="law", **changes):
    series = (
        Series(
            name="measured",
            xs=[1.0, 10.0, 100.0],
            ys=[0.9, 0.5, 0.1],
            lows=[0.8, 0.4, 0.0],
            highs=[1, 0.6, 0.2],
        ),
        Series(name=name, xs=[1.0, 10.0, 100.0], ys=[0.9, 0.5, 0.1], style="points"),
    )
    parts = {"title": f"ESS, {name}", "x": Axis("length", "tokens", logarithmic=True), "y": Axis("ESS", "1")}
    return Plot(**{**parts, "series": series, "rules": (Rule("floor", 0.5),), "note": name, **changes})


def page(text="plain"):
    blocks = [
        Paragraph(text),
        plot(text),
        Table(text, (Column(text, text), Column("n")), [[text, 3], ["b", 0.00123]], collapsed=True),
        TokenStrip(text, [TokenValue(text, 0.7, text), TokenValue("ok", 0.001)]),
    ]
    return Page(
        title=text,
        first_line=text,
        findings=[finding(text)],
        sections=[Section(text, blocks)],
        summary=[(text, text)],
    )


class TestThePage:
    def test_keeps_every_promise(self):
        assert broken_promises(render_page(page())) == []

    def test_hostile_text_stays_text_everywhere(self):
        html = render_page(page(HOSTILE))
        assert broken_promises(html) == []
        assert "<script" not in html
        assert "\x00" not in html
        assert "\u202e" not in html
        assert html.count("&lt;script&gt;") >= 10

    def test_the_verdict_is_the_worst_finding(self):
        assert worst_verdict([]) is Verdict.OK
        assert worst_verdict([finding(), finding(verdict=Verdict.UNUSABLE)]) is Verdict.UNUSABLE

    def test_the_first_line_names_the_cause(self):
        assert first_line([finding()], "nothing") == "caution: rocm: bf16 on the wire"
        assert first_line([], "no gap above the floor") == "ok: no gap above the floor"

    def test_tokens_are_coloured_by_their_gap(self):
        html = render_page(page())
        assert '<span class="g4" title="plain 0.700 nats">plain</span>' in html
        assert '<span class="g1" title="0.00100 nats">ok</span>' in html


class TestAPlot:
    def test_has_title_units_and_a_table_of_its_numbers(self):
        svg = render_plot(plot())
        assert "<title>ESS, law: ESS over length [tokens]</title>" in svg
        assert ">length [tokens]</text>" in svg
        table = plot_table(plot())
        assert [column.name for column in table.columns] == ["series", "length", "ESS", "from", "to"]
        assert list(table.rows[1]) == ["measured", 10.0, 0.5, 0.4, 0.6]
        assert list(table.rows[3]) == ["law", 1.0, 0.9, None, None]

    def test_a_point_stands_where_its_axes_say(self):
        series = Series(name="a", xs=[0.0, 10.0], ys=[0.0, 1.0], style="points")
        svg = render_plot(plot(x=Axis("n", "1"), y=Axis("v", "1"), series=(series,), rules=()))
        assert 'cx="58.0" cy="226.0"' in svg
        assert 'cx="408.0" cy="12.0"' in svg

    def test_without_finite_values_says_so(self):
        series = Series(name="a", xs=[1.0], ys=[float("nan")])
        assert "no finite value" in render_plot(plot(series=(series,), rules=()))

    def test_one_value_is_drawn(self):
        series = Series(name="a", xs=[5.0], ys=[0.0], style="bars")
        assert 'class="bar s0"' in render_plot(plot(series=(series,), rules=(), x=Axis("n", "1")))


class TestTheInspection:
    @pytest.mark.parametrize(
        "addition",
        [
            "<script>1</script>",
            '<img src="https://x.example/a.png">',
            '<p onclick="x()">a</p>',
            '<a href="http://x.example">a</a>',
            "<style>@import 'x';</style>",
            "<style>p{background:url(x)}</style>",
            "<svg></svg>",
            '<div class="pair"><figure><svg><title>a</title></svg></figure></div>',
            "<p>",
            "</p>",
        ],
    )
    def test_finds_what_breaks_a_promise(self, addition):
        html = render_page(page()).replace("</body>", f"{addition}</body>")
        assert broken_promises(html)
