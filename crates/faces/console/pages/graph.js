// An ensemble as a graph of its steps.

import { graphlib, layout } from './vendor/dagre.js';
import { html } from './vendor/preact-htm.js';
import { micros, short, shown } from './format.js';
import { activityKey, LATENCY, latest, REQUESTS, useLive } from './live.js';
import { modelLink } from './overview.js';
import { Scroll } from './parts.js';

const HEIGHT = 54;
const MARGIN = 16;
/** The width of a text, near enough for a box around it. */
const width = text => Math.min(300, 26 + 7.4 * text.length);
const brief = text => text.length > 36 ? `${text.slice(0, 35)}…` : text;

/** The nodes and edges of an ensemble. An edge carries the tensors of one node that another needs. */
function graphOf(config) {
  const steps = config.ensemble_scheduling.step;
  const nodes = [
    { id: 'in', title: 'Inputs', end: true }, ...steps.map((step, index) => ({ id: `${index}`, title: step.model_name, step })), { id: 'out', title: 'Outputs', end: true },
  ];
  const makers = new Map(config.input.map(({ name }) => [name, 'in']));
  steps.forEach((step, index) => Object.values(step.output_map ?? {}).forEach(tensor => makers.set(tensor, `${index}`)));
  const edges = new Map();
  const connect = (tensor, to) => {
    const from = makers.get(tensor);
    if (from === undefined) return;
    const edge = edges.get(`${from} ${to}`) ?? { from, to, tensors: [] };
    if (!edge.tensors.includes(tensor)) edge.tensors.push(tensor);
    edges.set(`${from} ${to}`, edge);
  };
  steps.forEach((step, index) => Object.values(step.input_map ?? {}).forEach(tensor => connect(tensor, `${index}`)));
  config.output.forEach(({ name }) => connect(name, 'out'));
  return { nodes, edges: [...edges.values()] };
}

function placed({ nodes, edges }) {
  const graph = new graphlib.Graph();
  graph.setGraph({ rankdir: 'LR', ranksep: 64, nodesep: 26, edgesep: 16, marginx: MARGIN, marginy: MARGIN });
  graph.setDefaultEdgeLabel(() => ({}));
  nodes.forEach(({ id, title, step }) => graph.setNode(id, { width: Math.max(step ? 150 : 96, width(brief(title))), height: HEIGHT }));
  edges.forEach(({ from, to, tensors }) => graph.setEdge(from, to, { width: Math.min(220, 6.2 * brief(tensors.join(', ')).length), height: 16, labelpos: 'c' }));
  layout(graph);
  return graph;
}

/** A smooth line through points. */
function curve(points) {
  const [first, ...rest] = points;
  const middle = rest.slice(0, -1).map((point, index) => {
    const next = rest[index + 1];
    const end = index === rest.length - 2 ? next : { x: (point.x + next.x) / 2, y: (point.y + next.y) / 2 };
    return `Q${point.x} ${point.y} ${end.x} ${end.y}`;
  });
  return `M${first.x} ${first.y}${middle.length ? middle.join('') : `L${rest[0].x} ${rest[0].y}`}`;
}

export function Graph({ config }) {
  const live = useLive();
  const { nodes, edges } = graphOf(config);
  const graph = placed({ nodes, edges });
  const { width: wide, height: high } = graph.graph();
  const now = step => {
    const versions = (live.models ?? []).filter(row => row.name === step.model_name && row.state === 'READY');
    const row = versions.find(row => row.version === String(step.model_version)) ?? versions.at(-1);
    const sample = row && latest(live.activity.get(activityKey(row.name, row.version)), live.at, live.interval);
    return !row ? 'not ready' : sample ? `${short(sample[REQUESTS])}/s · ${micros(sample[LATENCY])}` : 'idle';
  };
  return html`<section class="card graph" aria-label="Steps"><div class="card-head"><h2>Steps</h2><span class="muted">requests a second and mean latency of each model, from all its clients</span></div>
    <div class="card-body scroll" tabindex="0" role="region" aria-label="Graph"><svg width=${wide} height=${high} viewBox="0 0 ${wide} ${high}" role="group" aria-label="Graph of the ensemble">
      <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="arrow" d="M0 0L8 4L0 8Z"/></marker></defs>
      ${edges.map(({ from, to, tensors }) => {
        const { points, x, y } = graph.edge(from, to);
        return html`<g key=${`${from} ${to}`}><path class="edge" d=${curve(points)} marker-end="url(#arrow)"/><text class="label" x=${x} y=${y - 5} text-anchor="middle">${brief(tensors.join(', '))}<title>${tensors.join(', ')}</title></text></g>`;
      })}
      ${nodes.map(({ id, title, end, step }) => {
        const { x, y, width: w, height: h } = graph.node(id);
        const name = html`<text x=${x} y=${step ? y - 3 : y + 5} text-anchor="middle">${brief(title)}<title>${title}</title></text>`;
        return html`<g key=${id} class=${end ? 'end' : ''}><rect x=${x - w / 2} y=${y - h / 2} width=${w} height=${h} rx="8"/>
          ${step ? html`<a href=${modelLink(step.model_name)}>${name}</a><text class="small" x=${x} y=${y + 15} text-anchor="middle">${now(step)}</text>` : name}</g>`;
      })}
    </svg></div>
    <${Scroll} label="Steps, table"><table><thead><tr><th scope="col">Step</th><th scope="col">Model</th><th scope="col">Takes</th><th scope="col">Makes</th><th scope="col">Now</th></tr></thead>
      <tbody>${config.ensemble_scheduling.step.map((step, index) => html`<tr key=${index}><th scope="row">${index + 1}</th><td><a href=${modelLink(step.model_name)}>${shown(step.model_name)}</a></td>
        <td>${shown(Object.values(step.input_map ?? {}).join(', '))}</td><td>${shown(Object.values(step.output_map ?? {}).join(', '))}</td><td class="muted">${now(step)}</td></tr>`)}</tbody></table><//>
  </section>`;
}
