// The trace of a request to a model as a waterfall: its stages, and the requests that it caused.

import { html, useState } from './vendor/preact-htm.js';
import { request, useDocument } from './api.js';
import { count, dateTime, micros, shown } from './format.js';
import { modelLink } from './overview.js';
import { Problem, Scroll } from './parts.js';

// The parts of a request: a name, the points at its beginning and at its end, and its look.
const PARTS = [
  ['receiving', ['HTTP_RECV_START', 'GRPC_WAITREAD_START'], ['HTTP_RECV_END', 'GRPC_WAITREAD_END'], 'p0'],
  ['waiting', ['QUEUE_START'], ['COMPUTE_START', 'REQUEST_END'], 'p1'],
  ['inputs', ['COMPUTE_START'], ['COMPUTE_INPUT_END'], 'p2'],
  ['model', ['COMPUTE_INPUT_END'], ['COMPUTE_OUTPUT_START'], 'p3'],
  ['outputs', ['COMPUTE_OUTPUT_START'], ['COMPUTE_END'], 'p4'],
  ['sending', ['HTTP_SEND_START', 'GRPC_SEND_START'], ['HTTP_SEND_END', 'GRPC_SEND_END'], 'p5'],
];
const STAGES = new Set([...PARTS.flatMap(([, from, to]) => [...from, ...to]), 'REQUEST_START']);
const WORDS = { INFER_RESPONSE_COMPLETE: 'response' };

/** The parts of a request that it passed. An ensemble has none of its own: its members execute. */
function partsOf({ points }, hasInner) {
  const times = new Map();
  for (const [name, at] of points) if (!times.has(name)) times.set(name, at);
  const first = names => names.map(name => times.get(name)).find(at => at !== undefined);
  const executes = times.has('COMPUTE_START');
  return PARTS.flatMap(([name, from, to, look]) => {
    const [start, end] = [first(from), first(to)];
    return start === undefined || end === undefined || (look === 'p1' && !executes && hasInner) ? [] : [{ name, look, start, end }];
  });
}

/** The requests in the order of a tree, with their depth. */
function tree(spans) {
  const known = new Set(spans.map(span => span.id));
  const below = (parent, depth) => spans.filter(span => known.has(span.parent) ? span.parent === parent : parent === 0)
    .flatMap(span => [{ ...span, depth }, ...below(span.id, depth + 1)]);
  return below(0, 0);
}

/** Round times of an axis. */
function ticksOf(end) {
  const rough = end / 4;
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 2.5, 5, 10].map(factor => factor * power).find(step => step >= rough);
  return Array.from({ length: Math.floor(end / step) + 1 }, (_, index) => index * step);
}

// Ticks end like 250 µs, 1 ms and 2.5 ms.
const tickText = at => at ? micros(at).replace(/(\.\d*?)0+(?= )/, '$1').replace(/\.(?= )/, '') : '0';

const nameOf = ({ model }) => model === null ? html`<span class="muted">another model</span>` : shown(model || 'not accepted');

function Lane({ span, hasInner, ticks, end }) {
  const { points } = span;
  const place = (from, to) => ({ left: `${100 * from / end}%`, width: `${100 * (to - from) / end}%` });
  const [start, last] = [points[0][1], points.at(-1)[1]];
  const parts = partsOf(span, hasInner);
  const marks = points.filter(([name]) => !STAGES.has(name));
  const text = [...parts.map(({ name, start, end }) => `${name} ${micros(end - start)}`), ...(marks.length ? [`${count(marks.length)} other points`] : [])].join(', ');
  return html`<div class="lane" role="img" aria-label="from ${micros(start)} to ${micros(last)}${text ? `: ${text}` : ''}">
    ${ticks.map(at => html`<b key=${at} style=${{ left: `${100 * at / end}%` }}></b>`)}<div class="span" style=${place(start, last)}></div>
    ${parts.map(({ name, look, start, end }) => html`<div key=${name} class="part ${look}" style=${place(start, end)} title="${name} ${micros(end - start)}"></div>`)}
    ${marks.map(([name, at], index) => html`<i key=${index} style=${{ left: `${100 * at / end}%` }} title="${WORDS[name] ?? name} at ${micros(at)}"></i>`)}</div>`;
}

function Waterfall({ trace }) {
  const rows = tree(trace.spans);
  const end = Math.max(...trace.spans.flatMap(({ points }) => points.map(([, at]) => at)), 0.001);
  const ticks = ticksOf(end);
  const looks = PARTS.filter(([name]) => rows.some(span => partsOf(span, false).some(part => part.name === name)));
  return html`<${Scroll} label="Waterfall"><table class="waterfall"><thead><tr><th scope="col">Request to</th>
      <th scope="col"><span class="hidden">Time</span><div class="axis" aria-hidden="true">${ticks.map(at => html`<span key=${at} style=${{ left: `${100 * at / end}%` }}>${tickText(at)}</span>`)}</div></th><th scope="col" class="number">Took</th></tr></thead>
    <tbody>${rows.map(span => html`<tr key=${span.id}><th scope="row" style=${{ paddingLeft: `${16 + 18 * Math.min(span.depth, 6)}px` }}>${span.depth > 0 && html`<span class="muted" aria-hidden="true">└ </span>`}${span.model
      ? html`<a class="name" href=${modelLink(span.model, undefined, 'trace')}>${shown(span.model)}</a>` : nameOf(span)} <span class="tag">v${span.version}</span></th>
      <td><${Lane} span=${span} hasInner=${rows.some(other => other.parent === span.id)} ticks=${ticks} end=${end}/></td>
      <td class="number">${micros(span.points.at(-1)[1] - span.points[0][1])}</td></tr>`)}</tbody></table><//>
    <div class="card-body"><p class="legend">${looks.map(([name, , , look]) => html`<span key=${name}><i class=${look}></i>${name}</span>`)}<span><i class="rest"></i>in the server, between these</span></p>
      <details><summary>All times</summary><${Scroll} label="All times"><table class="values"><tbody>
        ${rows.flatMap(span => span.points.map(([name, at], index) => html`<tr key=${`${span.id} ${index}`}><th scope="row">${nameOf(span)}</th><td>${shown(name)}</td><td class="number">${micros(at)}</td></tr>`))}</tbody></table><//></details>
      ${trace.left_out > 0 && html`<p class="muted">${count(trace.left_out)} further points are left out.</p>`}</div>`;
}

export function Traces({ name }) {
  const path = `/console/api/models/${encodeURIComponent(name)}/trace`;
  const [waits, setWaits] = useState(false);
  const [refused, setRefused] = useState();
  const [value, error, reload] = useDocument(path, waits ? 500 : 5000);
  const waiting = value?.waits != null;
  if (value && waits !== waiting) setWaits(waiting);
  const begin = async () => {
    setRefused(undefined);
    try {
      await request(path, { method: 'POST' });
      await reload();
    } catch (problem) {
      setRefused(problem);
    }
  };
  const { trace } = value ?? {};
  return html`<${Problem} error=${refused ?? error} retry=${refused ? begin : reload}/>
    <section class="card" aria-labelledby="trace"><div class="card-head"><h2 id="trace">Trace of a request</h2>
      ${trace && html`<span class="muted">${dateTime(trace.at)}${trace.request_id && html`, request ${shown(trace.request_id)}`}</span>`}
      <button type="button" class="primary" onClick=${begin} disabled=${waiting}>${waiting ? 'Waiting…' : 'Trace the next request'}</button></div>
      ${waiting && html`<div class="card-body"><div class="note" role="status">The next request to ${shown(name)} is traced, over any protocol, if it comes within ${Math.ceil(value.waits)} s. <a href=${modelLink(name)}>Try it</a> sends one.</div></div>`}
      ${trace ? html`<${Waterfall} key=${trace.number} trace=${trace}/>`
        : value && !waiting && html`<p class="empty">Shows where the time of one request goes: in the queue, in the model, in the steps of an ensemble, in inner requests of models in Python that pass request.trace() on. The contents of tensors are not recorded.</p>`}
    </section>`;
}
