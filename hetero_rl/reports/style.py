"""The style sheet of a report: light and dark, wide and narrow, on screen and on paper."""

__all__ = ["STYLE"]

STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#1b1f24;--dim:#57606a;--line:#d0d7de;--soft:#f6f8fa;
--ok:#1a7f37;--caution:#9a6700;--unusable:#cf222e;--on:#fff;
--s0:#0969da;--s1:#bc4c00;--s2:#1a7f37;--s3:#8250df;--s4:#bf3989;--s5:#57606a;
--g1:#dafbe1;--g2:#fff1b8;--g3:#ffc9c9;--g4:#cf222e}
@media (prefers-color-scheme:dark){:root{--back:#0d1117;--text:#e6edf3;--dim:#9198a1;--line:#3d444d;--soft:#161b22;
--ok:#3fb950;--caution:#d29922;--unusable:#f85149;--on:#0d1117;
--s0:#58a6ff;--s1:#f0883e;--s2:#3fb950;--s3:#bc8cff;--s4:#f778ba;--s5:#9198a1;
--g1:#12361f;--g2:#4b3a0c;--g3:#67231f;--g4:#f85149}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:76rem;background:var(--back);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.2rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--line)}
h3{font-size:1rem;margin:1rem 0 .3rem}p{margin:.4rem 0}.note{color:var(--dim)}
.verdict{padding:.7rem 1rem;border-left:6px solid var(--mark);background:var(--soft);font-size:1.05rem;font-weight:600}
.ok{--mark:var(--ok)}.caution{--mark:var(--caution)}.unusable{--mark:var(--unusable)}
.finding{border:1px solid var(--line);border-left:6px solid var(--mark);padding:.5rem .8rem;margin:.6rem 0}
.finding b.word{color:var(--mark)}.finding ul{margin:.3rem 0;padding-left:1.2rem}
dl{display:grid;grid-template-columns:minmax(7rem,max-content) 1fr;gap:.1rem .8rem;margin:.6rem 0}
dt{color:var(--dim)}dd{margin:0;min-width:0}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:.5rem 1.5rem;align-items:start}
figure{margin:.6rem 0;min-width:0}figcaption{font-weight:600}
.scroll{overflow:auto;max-height:24rem;border:1px solid var(--line)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.87rem}
caption{text-align:left;font-weight:600;padding:.3rem .5rem}
th,td{padding:.2rem .5rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{position:sticky;top:0;background:var(--soft);font-weight:600}th small{color:var(--dim);font-weight:400}
td.t,th.t{min-width:7rem;text-align:left;white-space:normal;overflow-wrap:break-word}
svg{display:block;width:100%;max-width:40rem;height:auto}svg text{font-size:11px;fill:var(--dim)}
svg text.label{font-size:12px;fill:var(--text)}
.axis{fill:none;stroke:var(--dim)}.grid{fill:none;stroke:var(--line);stroke-width:.6}
.line{fill:none;stroke-width:1.8}.rule{fill:none;stroke:var(--unusable);stroke-dasharray:2 3;stroke-width:1.4}
.s0{stroke:var(--s0);--c:var(--s0)}.s1{stroke:var(--s1);--c:var(--s1)}.s2{stroke:var(--s2);--c:var(--s2)}
.s3{stroke:var(--s3);--c:var(--s3)}.s4{stroke:var(--s4);--c:var(--s4)}.s5{stroke:var(--s5);--c:var(--s5)}
.line.s1{stroke-dasharray:7 3}.line.s2{stroke-dasharray:2 2}.line.s3{stroke-dasharray:9 3 2 3}
.line.s4{stroke-dasharray:4 4}.line.s5{stroke-dasharray:1 3}
.dot{fill:var(--c);stroke:none}.band{fill:var(--c);fill-opacity:.16;stroke:none}.bar{fill:var(--c);fill-opacity:.75;stroke:none}
.tokens{font:13px/1.9 ui-monospace,monospace;white-space:pre-wrap;border:1px solid var(--line);padding:.5rem;
max-height:20rem;overflow:auto}
.tokens span{padding:.1rem 0}.g1{background:var(--g1)}.g2{background:var(--g2)}
.g3{background:var(--g3);text-decoration:underline}
.g4{background:var(--g4);color:var(--on);font-weight:700;text-decoration:underline}
summary{cursor:pointer;font-weight:600}
@media print{.scroll,.tokens{max-height:none;overflow:visible}}
"""
