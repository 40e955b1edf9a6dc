"""The frame of the demonstration's HTML page: its style and its texts."""

from __future__ import annotations

from typing import Final

__all__ = ["PAGE", "STYLE"]

STYLE: Final = """
:root { --ink:#1d2733; --soft:#66758a; --line:#e4e9f0; --paper:#fff; --back:#f4f6f9;
        --blue:#3f7cc4; --pale:#cfe0f3; --gold:#d98b16; --red:#c8323c; }
@media (prefers-color-scheme: dark) {
  :root { --ink:#e8edf4; --soft:#93a1b5; --line:#2b3646; --paper:#18202c; --back:#10161f;
          --blue:#6fa8e8; --pale:#27415f; --gold:#f0b04a; --red:#ff6b70; } }
* { box-sizing:border-box }
body { margin:0; background:var(--back); color:var(--ink); font:15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif }
main { max-width:1240px; margin:0 auto; padding:36px 24px 60px }
h1 { font-size:30px; line-height:1.2; margin:0 0 6px; letter-spacing:-.02em }
header p { margin:0 0 22px; color:var(--soft); max-width:78ch }
h2 { font-size:18px; margin:0 0 2px }
section { background:var(--paper); border:1px solid var(--line); border-radius:12px; padding:18px 22px; margin:18px 0 }
section p { margin:0 0 10px; color:var(--soft) }
.cards { display:grid; grid-template-columns:repeat(auto-fit,minmax(170px,1fr)); gap:12px }
.card { background:var(--paper); border:1px solid var(--line); border-radius:12px; padding:14px 16px }
.card b { display:block; font-size:24px; letter-spacing:-.01em; font-variant-numeric:tabular-nums }
.card span { display:block; font-weight:600 } .card small { color:var(--soft) }
svg { width:100%; height:auto; display:block; overflow:visible }
text { font:11px system-ui, sans-serif; fill:var(--ink) } text.axis { fill:var(--soft) }
text.note { font-weight:600; font-size:13px }
.grid { stroke:var(--line); stroke-width:1 }
path.actual { fill:var(--pale); stroke:var(--blue); stroke-width:1.2; stroke-linejoin:round }
rect.actual { fill:var(--blue) } rect.delay { fill:var(--blue); opacity:.45 }
rect.alarm { fill:var(--red); opacity:.13 }
rect.spike { fill:var(--red) }
.model { fill:none; stroke:var(--gold); stroke-width:1.8; stroke-linejoin:round }
line.dip, line.spike { stroke:var(--red); stroke-width:1 } circle.dip, circle.spike { fill:var(--red) }
text.dip, text.spike { fill:var(--red); font-weight:600 }
.key { display:inline-block; width:22px; height:3px; vertical-align:middle; margin:0 6px 0 14px; border-radius:2px }
.key:first-child { margin-left:0 }
.blue { background:var(--blue) } .gold { background:var(--gold) }
.red { background:var(--red) } .pale { background:var(--blue); opacity:.45 }
table { border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums }
td { padding:6px 12px 6px 0; border-top:1px solid var(--line) } tr:first-child td { border-top:0 }
td i { font-style:normal; font-weight:600; font-size:12px; padding:2px 9px; border-radius:9px; color:#fff }
tr.dip i { background:var(--blue) } tr.spike i { background:var(--red) }
"""

PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Zeitgeist: the flights of New York in 2013</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head><body><main>
<header><h1>The flights of New York in 2013, as MillWheel saw them</h1>
<p>Every departure came when the aircraft left, up to 21 hours after it was to. The program had no
schedule: it learned what is usual from the weeks before, and the low watermark showed what was late and what never
came.</p></header>
<div class="cards">{cards}</div>
<section><h2>Departures a day</h2>
<p><span class="key blue"></span>departed <span class="key gold"></span>what the model expected
<span class="key red"></span>dips: an airport below a third of its usual traffic, four hours in a row</p>
{traffic}</section>
<section><h2>Minutes of delay a day</h2>
<p><span class="key pale"></span>delay <span class="key gold"></span>the model's limit: an eighth above the worst of
the last six weeks <span class="key red"></span>spikes, reported as soon as the limit was passed</p>
{delays}</section>
<section><h2>The blizzard of 8 and 9 February, hour by hour</h2>
<p>Departures an hour, and what is usual for that hour of the week; shaded from each alert to the end of its day.
From an airport that is closed nothing comes: that it is closed, and not late, is what the low watermark says.</p>
{blizzard}</section>
<section><h2>Every alert</h2><table>{rows}</table></section>
</main></body></html>
"""
