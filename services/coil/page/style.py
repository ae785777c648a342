"""The style sheet of all pages, light and dark.

Every colour is a variable, said once for each scheme: `out` for what somebody has, `cool` for what rests or leaves,
`free`, `held` for what is reserved, `bad`, and `hit` for what a search has found. States also differ in shape: filled,
striped, hollow, dotted, crossed.
"""

_LIGHT = """
  color-scheme: light;
  --paper: #f4f6f3; --card: #fff; --well: #eef2ef; --line: #dfe5e1; --ink: #14201d; --soft: #52625d;
  --out: #0b7a6e; --glow: #0b7a6e2e; --cool: #b4510a; --free: #7f8f89; --held: #6b7691; --bad: #b3261e; --hit: #b0179e;
  --shade: 0 1px 2px #14201d12, 0 6px 20px -12px #14201d2e;
"""

_DARK = """
  color-scheme: dark;
  --paper: #0d1211; --card: #151c1a; --well: #1f2a27; --line: #26312e; --ink: #e4ece9; --soft: #9bada7;
  --out: #35c4b1; --glow: #35c4b133; --cool: #f5a142; --free: #667771; --held: #8f9cbd; --bad: #ff8a80; --hit: #ff7ad9;
  --shade: 0 1px 2px #0006;
"""

_SHEET = """
* { box-sizing: border-box; margin: 0; }
body {
  max-width: 1180px; margin: 0 auto; padding: 28px 24px 56px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums;
}
code, .grid i::after { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code { font-size: .86em; letter-spacing: -.01em; }
h1, h2, h3 { letter-spacing: -.015em; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; font-weight: 680; }
h2 { font-size: 1.15rem; font-weight: 660; }
h3 { font-size: .95rem; font-weight: 620; }
a { color: inherit; text-decoration-color: var(--free); text-underline-offset: 3px; }
a:hover { color: var(--out); text-decoration-color: currentColor; }
:focus-visible { outline: 2px solid var(--out); outline-offset: 2px; border-radius: 6px; }
[data-find] { cursor: pointer; }
.soft { color: var(--soft); }

.top { display: flex; flex-wrap: wrap; align-items: center; gap: 14px; margin-bottom: 22px; }
.top .mark { width: 44px; height: 44px; flex: none; color: var(--out); }
.top p { color: var(--soft); font-size: .85rem; }
.live {
  display: flex; align-items: center; gap: 8px; margin-left: auto; padding: 5px 13px; white-space: nowrap;
  border: 1px solid var(--line); border-radius: 99px; background: var(--card);
}
.live b { font-weight: 620; color: var(--ink); }
.live::before {
  content: ""; width: 8px; height: 8px; border-radius: 50%;
  background: var(--out); box-shadow: 0 0 0 4px var(--glow);
}
.stale .live, .stale .live b { border-color: var(--bad); color: var(--bad); }
.stale .live::before { background: none; border: 2px solid var(--bad); box-shadow: none; }
.stale main { opacity: .55; filter: saturate(.35); }

.search {
  position: sticky; top: 0; z-index: 3; display: flex; align-items: center; gap: 16px;
  margin-bottom: 8px; padding: 10px 0; background: var(--paper);
}
.search label { position: relative; flex: 1; }
.search input {
  width: 100%; padding: 10px 44px 10px 16px; font: inherit; color: inherit; background: var(--card);
  border: 1px solid var(--line); border-radius: 11px; box-shadow: var(--shade);
}
.search input::placeholder { color: var(--soft); opacity: 1; }
.search input:focus { outline: 2px solid var(--out); outline-offset: -1px; }
.search kbd {
  position: absolute; right: 12px; top: 10px; padding: 1px 9px; font-family: inherit; font-size: .8rem;
  font-weight: 600; color: var(--soft); background: var(--well); border: 1px solid var(--line); border-radius: 6px;
}
.search input:focus + kbd { visibility: hidden; }
.search output { color: var(--hit); font-weight: 620; white-space: nowrap; }
.search output:empty { display: none; }

main { display: flex; flex-wrap: wrap; gap: 18px; }
section {
  flex: 1 1 100%; min-width: 0; padding: 20px 22px; background: var(--card);
  border: 1px solid var(--line); border-radius: 16px; box-shadow: var(--shade);
}
.span1 { flex-basis: 330px; }
.span2 { flex-basis: 660px; }
.head { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 12px; }
.head .right { margin-left: auto; color: var(--soft); font-size: .88rem; }
.note { margin-top: 8px; color: var(--soft); font-size: .85rem; }
.wrong { margin-top: 12px; padding: 2px 0 2px 12px; border-left: 3px solid var(--bad); overflow-wrap: anywhere; }
.chip {
  padding: 1px 9px; border: 1px solid; border-radius: 99px; white-space: nowrap;
  font-size: .75rem; font-weight: 600; color: var(--soft);
}
.chip.good { color: var(--out); }
.chip.warn { color: var(--cool); }
.chip.bad { color: var(--bad); }
.chip.held { color: var(--held); }

.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(112px, 1fr)); gap: 16px; margin-bottom: 16px; }
.tile dt { display: flex; align-items: center; gap: 8px; color: var(--soft); font-size: .85rem; white-space: nowrap; }
.tile dd { font-size: 2.1rem; line-height: 1.2; font-weight: 680; letter-spacing: -.03em; white-space: nowrap; }
.tile .long { font-size: 1.45rem; line-height: 1.75; }
.tile dd small { display: block; font-size: .8rem; font-weight: 400; letter-spacing: 0; color: var(--soft); }
.bar { display: block; width: 100%; height: 8px; border-radius: 4px; background: var(--well); overflow: hidden; }
.head + .bar { margin: 10px 0 4px; }
.bar .used, .bar .allocated { fill: var(--out); }
.bar .cooling, .bar .leaving { fill: var(--cool); }
.bar .withheld, .bar .reserved { fill: var(--held); }
.bar .orphaned { fill: var(--bad); }

.blocks {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(300px, 1fr)); gap: 26px 34px; margin-top: 18px;
}
.block { min-width: 0; }
.block .nets { margin-bottom: 9px; color: var(--soft); overflow-wrap: anywhere; }
.nets code + code::before { content: "·"; margin: 0 .5em; }
.grid {
  position: relative; display: grid; grid-template-columns: repeat(16, minmax(0, 1fr)); gap: 4px; max-width: 356px;
}
.wide { margin-top: 16px; }
.wide .grid { grid-template-columns: repeat(auto-fill, 14px); max-width: none; }
.grid i, .key { display: block; aspect-ratio: 1; border: 1.5px solid var(--free); border-radius: 4px; }
.key { width: 15px; flex: none; }
i.used, i.allocated { background: var(--out); border-color: var(--out); }
i.some { background: linear-gradient(0deg, var(--out) 50%, transparent 50%); border-color: var(--out); }
i.cooling, i.leaving {
  border-color: var(--cool); background: repeating-linear-gradient(135deg, var(--cool) 0 2px, transparent 2px 5px);
}
i.withheld, i.reserved {
  border-color: var(--held); background: radial-gradient(circle, var(--held) 0 26%, transparent 30%);
}
i.orphaned {
  border-color: var(--bad);
  background: linear-gradient(45deg, transparent 40%, var(--bad) 40% 60%, transparent 60%),
    linear-gradient(135deg, transparent 40%, var(--bad) 40% 60%, transparent 60%);
}
.searching .grid i:not(.hit, :hover) { opacity: .28; }
.grid i.hit { outline: 3px solid var(--hit); outline-offset: 1px; }
.grid i:hover { outline: 2px solid var(--ink); outline-offset: 1px; }
.grid i:hover::after {
  content: attr(data-tip); position: absolute; z-index: 2; pointer-events: none;
  left: var(--tip-x, 0); top: var(--tip-y, calc(100% + 8px));
  width: max-content; max-width: 100%; padding: 8px 12px; border-radius: 9px;
  background: var(--ink); color: var(--paper); font-size: .82rem;
  font-style: normal; line-height: 1.45; white-space: pre-line; overflow-wrap: anywhere;
}
.changed { animation: changed 1.8s ease-out; }
@keyframes changed { 0% { box-shadow: 0 0 0 7px var(--glow); transform: scale(1.35); } }

.fill { display: flex; align-items: flex-end; gap: 26px; margin-top: 10px; }
.fill .level { flex: 1; min-width: 0; }
.fill .big { font-size: 1.6rem; line-height: 1.4; font-weight: 680; letter-spacing: -.02em; }
.fill .big small { font-size: .85rem; font-weight: 400; letter-spacing: 0; color: var(--soft); }
.past { width: 240px; color: var(--soft); font-size: .78rem; }
.past p { display: flex; justify-content: space-between; margin-top: 4px; }
.spark { display: block; width: 240px; height: 44px; overflow: visible; }
.spark .base { fill: none; stroke: var(--line); }
.spark .under { fill: var(--glow); }
.spark .curve { fill: none; stroke: var(--out); stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.spark .now { fill: var(--out); stroke: var(--card); stroke-width: 1.5; }

.scroll { overflow-x: auto; margin: 0 -22px; padding: 0 22px; }
table { width: 100%; margin-top: 6px; border-collapse: collapse; font-size: .9rem; }
caption { padding-bottom: 6px; text-align: left; color: var(--soft); font-size: .85rem; }
th { text-align: left; font-weight: inherit; }
th, td { padding: 7px 18px 7px 0; border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
thead th { padding-top: 4px; color: var(--soft); font-size: .78rem; font-weight: 600; white-space: nowrap; }
tbody tr:last-child > * { border-bottom: 0; }
tbody tr:hover { background: var(--well); }
td:last-child { white-space: nowrap; }
.state, .amount { display: inline-flex; align-items: center; gap: 8px; white-space: nowrap; }
.amount b { min-width: 2.5em; font-weight: inherit; }
.amount .bar { width: 150px; }
.foot { margin-top: 26px; color: var(--soft); font-size: .85rem; }

@media (max-width: 640px) {
  body { padding: 16px 14px 40px; }
  section { padding: 16px; }
  .scroll { margin: 0 -16px; padding: 0 16px; }
  .live { margin-left: 0; }
  .fill { flex-direction: column; align-items: stretch; }
}
@media (prefers-reduced-motion: reduce) { .changed { animation: none; } }
"""

STYLE = f"\n:root {{{_LIGHT}}}\n@media (prefers-color-scheme: dark) {{ :root {{{_DARK}}} }}\n{_SHEET}"
