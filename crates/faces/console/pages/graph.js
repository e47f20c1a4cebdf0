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

const EACH = '$each:';
const tensorsOf = map => Object.values(map ?? {});
/** The inputs of a step, with what its directives make of them. */
const inputsOf = step => Object.entries(step.input_map ?? {}).filter(([key]) => key !== '$on_error' && key !== '$timeout').map(([key, tensor]) => ({
  tensor, optional: key === '$if' || key === '$unless',
  text: key === '$if' ? `if ${tensor}` : key === '$unless' ? `unless ${tensor}` : key.startsWith(EACH) ? `each of ${tensor}` : tensor,
}));
const failing = step => step.input_map?.$on_error;
/** When a step runs, in words; empty if always. */
const whenOf = step => [
  failing(step) !== undefined && `if ${failing(step)} fails`, ...inputsOf(step).filter(({ optional }) => optional).map(({ text }) => text),
  step.input_map?.$timeout !== undefined && `for ${step.input_map.$timeout} at most`,
].filter(Boolean).join(', ');

/** The nodes and edges of an ensemble. An edge carries the tensors of one node that another needs; dashed ones decide whether it runs. */
function graphOf(config) {
  const steps = config.ensemble_scheduling.step;
  const nodes = [
    { id: 'in', title: 'Inputs', end: true }, ...steps.map((step, index) => ({ id: `${index}`, title: step.model_name, step })), { id: 'out', title: 'Outputs', end: true },
  ];
  const makers = new Map(config.input.map(({ name }) => [name, ['in']]));
  steps.forEach((step, index) => tensorsOf(step.output_map).forEach(tensor => makers.set(tensor, [...(makers.get(tensor) ?? []).filter(id => id !== 'in'), `${index}`])));
  const edges = new Map();
  const connect = (tensor, to, text, dashed) => (makers.get(tensor) ?? []).forEach(from => {
    const key = `${from} ${to}${dashed ? ' ?' : ''}`;
    const edge = edges.get(key) ?? { key, from, to, texts: [], dashed };
    if (!edge.texts.includes(text)) edge.texts.push(text);
    edges.set(key, edge);
  });
  steps.forEach((step, index) => inputsOf(step).forEach(({ tensor, text, optional }) => connect(tensor, `${index}`, text, optional)));
  const same = (one, other) => ['$if', '$unless'].every(key => one.input_map?.[key] === other.input_map?.[key]);
  steps.forEach((step, index) => {
    const tensor = failing(step);
    const replaced = tensor === undefined ? -1 : steps.findIndex(other => failing(other) === undefined && same(step, other) && tensorsOf(other.output_map).includes(tensor));
    if (replaced >= 0) edges.set(`${replaced} ${index} !`, { key: `${replaced} ${index} !`, from: `${replaced}`, to: `${index}`, texts: ['if it fails'], dashed: true });
  });
  config.output.forEach(({ name }) => connect(name, 'out', name, false));
  return { nodes, edges: [...edges.values()] };
}

function placed({ nodes, edges }) {
  const graph = new graphlib.Graph({ multigraph: true });
  graph.setGraph({ rankdir: 'LR', ranksep: 64, nodesep: 26, edgesep: 16, marginx: MARGIN, marginy: MARGIN });
  graph.setDefaultEdgeLabel(() => ({}));
  nodes.forEach(({ id, title, step }) => graph.setNode(id, { width: Math.max(step ? 150 : 96, width(brief(title))), height: HEIGHT }));
  edges.forEach(({ key, from, to, texts }) => graph.setEdge(from, to, { width: Math.min(220, 6.2 * brief(texts.join(', ')).length), height: 16, labelpos: 'c' }, key));
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
  const conditional = config.ensemble_scheduling.step.some(whenOf);
  const now = step => {
    const versions = (live.models ?? []).filter(row => row.name === step.model_name && row.state === 'READY');
    const row = versions.find(row => row.version === String(step.model_version)) ?? versions.at(-1);
    const sample = row && latest(live.activity.get(activityKey(row.name, row.version)), live.at, live.interval);
    return !row ? 'not ready' : sample ? `${short(sample[REQUESTS])}/s · ${micros(sample[LATENCY])}` : 'idle';
  };
  return html`<section class="card graph" aria-label="Steps"><div class="card-head"><h2>Steps</h2><span class="muted">requests a second and mean latency of each model, from all its clients</span></div>
    <div class="card-body scroll" tabindex="0" role="region" aria-label="Graph"><svg width=${wide} height=${high} viewBox="0 0 ${wide} ${high}" role="group" aria-label="Graph of the ensemble">
      <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="arrow" d="M0 0L8 4L0 8Z"/></marker></defs>
      ${edges.map(({ key, from, to, texts, dashed }) => {
        const { points, x, y } = graph.edge(from, to, key);
        return html`<g key=${key}><path class="edge ${dashed ? 'dashed' : ''}" d=${curve(points)} marker-end="url(#arrow)"/><text class="label" x=${x} y=${y - 5} text-anchor="middle">${brief(texts.join(', '))}<title>${texts.join(', ')}</title></text></g>`;
      })}
      ${nodes.map(({ id, title, end, step }) => {
        const { x, y, width: w, height: h } = graph.node(id);
        const name = html`<text x=${x} y=${step ? y - 3 : y + 5} text-anchor="middle">${brief(title)}<title>${title}</title></text>`;
        return html`<g key=${id} class=${end ? 'end' : ''}><rect x=${x - w / 2} y=${y - h / 2} width=${w} height=${h} rx="8"/>
          ${step ? html`<a href=${modelLink(step.model_name)}>${name}</a><text class="small" x=${x} y=${y + 15} text-anchor="middle">${now(step)}</text>` : name}</g>`;
      })}
    </svg></div>
    <${Scroll} label="Steps, table"><table><thead><tr><th scope="col">Step</th><th scope="col">Model</th><th scope="col">Takes</th><th scope="col">Makes</th>${conditional && html`<th scope="col">Runs</th>`}<th scope="col">Now</th></tr></thead>
      <tbody>${config.ensemble_scheduling.step.map((step, index) => html`<tr key=${index}><th scope="row">${index + 1}</th><td><a href=${modelLink(step.model_name)}>${shown(step.model_name)}</a></td>
        <td>${shown(inputsOf(step).filter(({ optional }) => !optional).map(({ text }) => text).join(', '))}</td><td>${shown(tensorsOf(step.output_map).join(', '))}</td>${conditional && html`<td>${whenOf(step) || 'always'}</td>`}<td class="muted">${now(step)}</td></tr>`)}</tbody></table><//>
  </section>`;
}
