"""The style of the page, which is written into it: light and dark, wide and narrow."""

CSS = """
:root { color-scheme: light dark; --paper: #fff; --panel: #f6f8fa; --ink: #1f2328; --soft: #57606a; --line: #d0d7de;
  --good: #1a7f37; --bad: #c62828; --doubt: #8a5a00; --link: #0969da; --plus: #e8590c; --minus: #1971c2; --on: #3d5a80;
  --d0: #1971c2; --d1: #c2410c; --d2: #2b8a3e; --d3: #862e9c }
@media (prefers-color-scheme: dark) { :root { --paper: #0d1117; --panel: #161b22; --ink: #e6edf3; --soft: #9da7b3;
  --line: #3d444d; --good: #4ac26b; --bad: #ff8078; --doubt: #e0b040; --link: #6cb6ff; --plus: #ff922b; --minus: #4dabf7;
  --on: #8fb4e0; --d0: #4dabf7; --d1: #ff922b; --d2: #69db7c; --d3: #da77f2 } }
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif }
main, footer { max-width: 66rem; margin: 0 auto; padding: 1rem clamp(.9rem, 3vw, 2rem) }
h1, h2, h3 { line-height: 1.25; overflow-wrap: anywhere }
h1 { font-size: 1.2rem; margin: 0; font-weight: 600 } h2 { font-size: 1.25rem; margin: 2.2rem 0 .6rem } h3 { font-size: 1.02rem; margin: 0; font-weight: 400 } h3 code { font-weight: 700 }
code, pre, .mono { font: .9em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere }
a { color: var(--link) }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; border-radius: 3px }
.skip { position: absolute; left: -200vw } .skip:focus { left: .5rem; top: .5rem; background: var(--paper); padding: .4rem .8rem; z-index: 1 }
.verdict { border-left: 8px solid var(--soft); background: var(--panel); padding: 1rem 1.2rem; border-radius: 6px; margin-top: .6rem }
.verdict p { margin: .3rem 0 0 } .verdict .say { font-size: clamp(1.5rem, 5vw, 2.2rem); font-weight: 700; line-height: 1.2 }
.green { border-color: var(--good) } .red { border-color: var(--bad) } .grey { border-color: var(--doubt) }
.green .say, .held { color: var(--good) } .red .say, .broken, .crashed, .nondeterministic { color: var(--bad) }
.grey .say, .known, .doubt { color: var(--doubt) } .soft, .na { color: var(--soft) }
.held, .broken, .crashed, .nondeterministic, .known, .doubt { font-weight: 600 }
.box { border: 1px solid var(--line); border-radius: 6px; padding: .8rem 1rem; margin: .8rem 0; min-width: 0 }
.box > p { margin: .4rem 0 }
details { border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0 }
summary { padding: .55rem .8rem; cursor: pointer; overflow-wrap: anywhere } details[open] > summary { border-bottom: 1px solid var(--line) }
details > :not(summary) { margin-left: .8rem; margin-right: .8rem } details > table { width: calc(100% - 1.6rem) }
summary h3 { display: inline } summary .count { color: var(--soft); font-size: .92rem }
table { border-collapse: collapse; width: 100%; font-size: .93rem } caption { text-align: left; color: var(--soft); padding: .4rem 0 }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem .4rem 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere }
tr:last-child > * { border-bottom: 0 } th { font-weight: 600 } tbody th { font-weight: 500 }
th small, td small { display: block; margin-top: .1rem; font-weight: 400; color: var(--soft); font-size: .86rem }
.tight :is(th, td):not(:last-child) { white-space: nowrap } .ledger { table-layout: fixed } .ledger th:first-child { width: 50% } .ledger th:nth-child(2) { width: 20% }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .2rem 1rem; margin: .7rem 0 }
dt { color: var(--soft) } dd { margin: 0; overflow-wrap: anywhere }
.figures { display: flex; flex-wrap: wrap; gap: .6rem 1.6rem; margin: .7rem 0 } .figures > div { min-width: 0 }
figure { margin: .8rem 0; min-width: 0 } figcaption { color: var(--soft); font-size: .9rem } .figures p { margin: 0 0 .2rem; font-size: .9rem }
svg { display: block; max-width: 100%; height: auto } svg text { fill: var(--ink); font-family: system-ui, sans-serif }
svg .axis { fill: var(--soft) } svg .frame { fill: none; stroke: var(--line) } svg .tick { stroke: var(--line); stroke-width: 1 }
svg .bound { stroke: var(--bad); stroke-width: 2; stroke-dasharray: 6 4 } svg .p { fill: var(--plus) } svg .m { fill: var(--minus) }
svg .on { fill: var(--on); fill-opacity: .45 } svg .nan { fill: var(--bad); fill-opacity: .35 }
svg .d0 { fill: var(--d0); stroke: var(--d0) } svg .d1 { fill: var(--d1); stroke: var(--d1) } svg .d2 { fill: var(--d2); stroke: var(--d2) }
svg .d3 { fill: var(--d3); stroke: var(--d3) } svg polyline { fill: none !important; stroke-width: 1.2; stroke-opacity: .45 }
.meter { display: inline-block; width: 5rem; max-width: 100%; height: .6rem; background: var(--line); border-radius: 3px; overflow: hidden }
.meter span { display: block; height: 100%; background: var(--good) }
@media (max-width: 40rem) { dl { grid-template-columns: minmax(0, 1fr); gap: 0 } dd { margin-bottom: .45rem } .box { padding: .6rem .7rem }
  .ledger tr { display: grid; grid-template-columns: minmax(0, 1fr) max-content; border-bottom: 1px solid var(--line); padding: .3rem 0 }
  .ledger tr:last-child { border-bottom: 0 } .meter { width: 3.2rem }
  .ledger tr > * { border: 0; padding: .1rem 0; width: auto !important } .ledger tr > :nth-child(2) { padding-left: .8rem }
  .ledger tr > :nth-child(3) { grid-column: 1 / 3 } .ledger thead { display: none } }
@media print { details > * { display: block !important } .skip { display: none } }
"""
