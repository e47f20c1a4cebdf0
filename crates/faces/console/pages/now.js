// What a version does at the moment: the requests that wait, by priority, its sequences and processes.

import { html } from './vendor/preact-htm.js';
import { useDocument } from './api.js';
import { bytes, count, seconds } from './format.js';
import { Problem, Scroll } from './parts.js';

const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many}`;

function Levels({ levels, total }) {
  return html`<${Scroll} label="Queue by priority"><table><thead><tr><th scope="col">Priority</th><th scope="col" class="number">Waiting</th><th scope="col" class="number">First in line for</th>
      <th scope="col" class="number">Room for</th><th scope="col">Longest wait</th></tr></thead>
    <tbody>${levels.map(one => html`<tr key=${one.level}><th scope="row">${count(one.level)}${one.level === 1 ? ', most urgent' : ''}${one.is_default ? html` <span class="tag">default</span>` : ''}</th>
      <td class="number">${count(one.waiting)}</td><td class="number">${one.seconds === null ? '' : seconds(one.seconds)}</td>
      <td class="number">${one.max_queue_size ? count(one.max_queue_size) : 'any number'}</td>
      <td>${one.timeout === null ? html`<span class="muted">no limit</span>` : `${seconds(one.timeout)}, then ${one.delays ? 'behind the others' : 'refused'}`}</td></tr>`)}</tbody></table><//>
    ${levels.length < total && html`<p class="card-body muted">Of ${count(total)} levels, those with waiting requests or a policy of their own are shown.</p>`}`;
}

/** A version at the moment. Ensembles have neither a queue nor processes. */
export function Now({ name, version, batches }) {
  const [value, error, retry] = useDocument(`/console/api/models/${encodeURIComponent(name)}/now${version ? `?version=${version}` : ''}`, 2000);
  const levels = value?.levels ?? [];
  return html`<section class="card" aria-labelledby="now"><div class="card-head"><h2 id="now">At the moment</h2></div>
    <${Problem} error=${error?.header ? undefined : error} retry=${retry}/>
    ${value && html`<dl class="facts card-body"><dt>Waiting</dt><dd>${plural(value.waiting, 'request', 'requests')}${batches && !levels.length ? html` <span class="muted">of one priority; priority_levels of dynamic_batching adds more</span>` : ''}</dd>
      ${value.sequences !== null && html`<dt>Sequences</dt><dd>${plural(value.sequences, 'is open', 'are open')}</dd>`}
      ${value.batches && html`<dt>Batches</dt><dd>of ${count(value.batches.size)}, or after ${seconds(value.batches.delay)}, to answer within ${seconds(value.batches.objective)}${value.batches.execution !== null && html` <span class="muted">of which an execution takes ${seconds(value.batches.execution)}</span>`}</dd>`}
      ${value.processes > 0 && html`<dt>Processes</dt><dd>${count(value.processes)}, ${bytes(value.memory)} of memory</dd>`}</dl>
      ${levels.length > 0 && html`<${Levels} levels=${levels} total=${value.priority_levels}/>`}`}</section>`;
}
