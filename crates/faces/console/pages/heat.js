// A heat map: how often executions had each batch size.

import { html, useEffect, useLayoutEffect, useRef, useState } from './vendor/preact-htm.js';
import { time } from './format.js';
import { AT, BATCHES } from './live.js';

const SIZES = ['1', '2', '3–4', '5–8', '9–16', '17–32', '33–64', '65 and more'];
const ROW = 20;
const percent = share => `${Math.round(100 * share)} %`;

/** The batch sizes that occur in rows, up to the largest one. */
const countOf = rows => 1 + Math.max(0, ...rows.map(row => row[BATCHES] ? row[BATCHES].findLastIndex(share => share > 0) : 0));

/** Shares in words, the most frequent first. */
const words = shares => !shares?.some(share => share > 0) ? 'no executions'
  : shares.map((share, index) => [share, index]).filter(([share]) => share >= 0.005).sort((a, b) => b[0] - a[0]).map(([share, index]) => `${SIZES[index]}: ${percent(share)}`).join(', ');

export function BatchMap({ zero, rows, from, theme }) {
  const canvas = useRef();
  const [at, setAt] = useState();
  const [width, setWidth] = useState(0);
  const count = countOf(rows);
  useEffect(() => {
    const follow = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    follow.observe(canvas.current.parentElement);
    return () => follow.disconnect();
  }, []);
  useLayoutEffect(() => {
    const ratio = devicePixelRatio;
    const height = count * ROW;
    Object.assign(canvas.current, { width: width * ratio, height: height * ratio });
    const brush = canvas.current.getContext('2d');
    brush.scale(ratio, ratio);
    brush.fillStyle = getComputedStyle(document.documentElement).getPropertyValue('--accent');
    const cell = width / rows.length;
    rows.forEach((row, column) => row[BATCHES]?.forEach((share, size) => {
      if (share <= 0) return;
      // Rare sizes have to be seen, too.
      brush.globalAlpha = 0.12 + 0.88 * share;
      brush.fillRect(column * cell, height - (size + 1) * ROW + 1, Math.max(1, cell - (cell > 5 ? 1 : 0)), ROW - 2);
    }));
  }, [rows, width, count, theme]);
  const row = rows[at ?? rows.length - 1] ?? rows.at(-1);
  const move = event => {
    const { left, width } = event.target.getBoundingClientRect();
    setAt(Math.min(rows.length - 1, Math.max(0, Math.floor(rows.length * (event.clientX - left) / width))));
  };
  return html`<section class="card chart" aria-label="Batch sizes"><div class="chart-head"><h2>Batch sizes <span class="muted">share of executions</span></h2><span class="muted number">${row ? time(zero + row[AT] * 1000) : ''}</span></div>
    <div class="heat"><div class="sizes" aria-hidden="true">${SIZES.slice(0, count).toReversed().map(size => html`<span key=${size}>${size}</span>`)}</div>
      <div><canvas ref=${canvas} role="img" aria-label="Batch sizes since ${from}: ${words(rows.at(-1)?.[BATCHES])} at last" onMouseMove=${move} onMouseLeave=${() => setAt(undefined)}></canvas>
        <div class="ends" aria-hidden="true"><span>${rows.length ? time(zero + rows[0][AT] * 1000) : ''}</span><span>${rows.length ? time(zero + rows.at(-1)[AT] * 1000) : ''}</span></div></div></div>
    <p class="legend">${words(row?.[BATCHES])}</p></section>`;
}
