// Outputs of a model: classes with bars, tables, texts, and what views.js shows.

import { html, useState } from './vendor/preact-htm.js';
import { count, shown } from './format.js';
import { Scroll, Segments } from './parts.js';
import { elements, isFloat } from './tensors.js';
import { HeatMap, isSound, mapOf, Picture, pictureOf, Sound } from './views.js';

const MAX_CELLS = 400;
const CLASSES = 10;

const cell = (value, datatype) => typeof value === 'number' && isFloat(datatype)
  ? (Number.isFinite(value) ? String(Number(value.toPrecision(6))) : String(value))
  : value instanceof Uint8Array ? `${count(value.length)} bytes` : shown(String(value));

function Table({ values, shape, datatype }) {
  const columns = shape.length ? Math.max(1, shape.at(-1)) : 1;
  const wide = Math.min(columns, 20);
  const rows = Math.min(Math.ceil(values.length / columns), Math.floor(MAX_CELLS / wide));
  const left = values.length - rows * wide;
  return html`<${Scroll} label="Values"><table class="values"><tbody>
    ${Array.from({ length: rows }, (_, row) => html`<tr key=${row}><th scope="row">${row}</th>
      ${values.slice(row * columns, row * columns + wide).map((value, column) => html`<td key=${column} class="number">${cell(value, datatype)}</td>`)}</tr>`)}
  </tbody></table><//>${left > 0 && html`<p class="muted">${count(left)} more values are not shown.</p>`}`;
}

/** Whether scores are probabilities of classes. */
const isShares = values => values.every(value => value >= 0) && Math.abs(values.reduce((sum, value) => sum + value, 0) - 1) < 0.01;

/** The highest values of a list of scores. */
function Classes({ values, labels }) {
  const order = values.map((score, index) => [Number(score), index]).filter(([score]) => !Number.isNaN(score)).sort((a, b) => b[0] - a[0]).slice(0, CLASSES);
  const shares = isShares(values);
  const highest = shares ? 1 : order[0]?.[0];
  const lowest = shares ? 0 : Math.min(0, ...values.map(Number));
  return html`<div class="classes">${order.map(([score, index]) => html`
    <span>${labels?.get(index) ? shown(labels.get(index)) : index}</span>
    <div class="track" aria-hidden="true"><div style=${{ width: `${Math.max(0, 100 * (score - lowest) / ((highest - lowest) || 1))}%` }}></div></div>
    <span class="number">${shares ? `${(100 * score).toFixed(1)} %` : Number(score.toPrecision(5))}</span>`)}</div>`;
}

function summary(values) {
  const numbers = values.map(Number).filter(Number.isFinite);
  if (numbers.length < 2) return '';
  const [low, high] = numbers.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
  const mean = numbers.reduce((sum, value) => sum + value, 0) / numbers.length;
  return `lowest ${Number(low.toPrecision(5))}, mean ${Number(mean.toPrecision(5))}, highest ${Number(high.toPrecision(5))}`;
}

/** An output. `labels` are names of classes by their numbers, which may come later than the output. */
export function Output({ output, labels, isLabelled }) {
  const { name, datatype, shape, values } = output;
  const numeric = datatype !== 'BYTES';
  const batch = shape.length > 1 && elements(shape.slice(0, -1)) === 1;
  const isScores = numeric && isFloat(datatype) && (shape.length === 1 || batch) && values.length > 1;
  const [picture, map, sound] = numeric ? [pictureOf(output), mapOf(output), isSound(output)] : [];
  const views = [...(isScores && !sound ? [['classes', 'Highest']] : []), ...(picture ? [['picture', 'Picture']] : []), ...(map ? [['map', 'Map']] : []), ...(sound ? [['sound', 'Sound']] : []), ['values', 'Values']];
  const [view, setView] = useState(isScores && !sound && (isLabelled || isShares(values)) ? 'classes' : picture ? 'picture' : sound ? 'sound' : 'values');
  const isText = datatype === 'BYTES' && values.length === 1 && typeof values[0] === 'string';
  return html`<div class="input result">
    <div class="input-head"><h3>${shown(name)}</h3><span class="mono">${datatype} [${shape.join(', ')}]</span>
      ${views.length > 1 && html`<${Segments} label="View of ${name}" options=${views} value=${view} onChange=${setView}/>`}</div>
    ${isText ? html`<p class="answer-text">${shown(values[0])}</p>`
      : view === 'classes' ? html`<${Classes} values=${values} labels=${labels}/>`
      : view === 'picture' && picture ? html`<${Picture} output=${output} picture=${picture}/>`
      : view === 'map' && map ? html`<${HeatMap} output=${output} map=${map}/>`
      : view === 'sound' && sound ? html`<${Sound} output=${output}/>`
        : html`<${Table} values=${values} shape=${shape} datatype=${datatype}/>`}
    ${numeric && values.length > 20 && html`<p class="muted">${summary(values)}</p>`}
  </div>`;
}
