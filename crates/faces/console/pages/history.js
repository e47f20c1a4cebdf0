// When states changed, sequences that are open, and who changed what.

import { html } from './vendor/preact-htm.js';
import { useDocument } from './api.js';
import { bytes, count, dateTime, seconds, shown } from './format.js';
import { modelLink } from './overview.js';
import { messageOf, Problem, Scroll, stateOf } from './parts.js';

const STATES_SHOWN = 100;

const changes = number => `${count(number)} ${number === 1 ? 'change' : 'changes'}`;

/** An error, unless the rest of the page asks for the key already. */
const unasked = error => error?.header ? undefined : error;

function ChangedState({ state, reason, model }) {
  // The index has one text for a reload that failed and for a part in a release.
  const [word, look] = model === null ? [state === 'READY' ? 'Ready' : 'Not ready', state === 'READY' ? 'ready' : 'loading']
    : stateOf({ state, reason: state === 'READY' && !reason?.startsWith('still served') ? null : reason });
  return html`<span class="state ${look}"><span class="dot ${look}"></span>${word}</span>`;
}

/** The changes of states of a model, or of the server and all models. */
export function States({ model }) {
  const [value, error, retry] = useDocument(`/console/api/states${model === undefined ? '' : `?model=${encodeURIComponent(model)}`}`, 5000);
  const rows = (value ?? []).toReversed().slice(0, STATES_SHOWN);
  return html`<section class="card" aria-labelledby="states"><div class="card-head"><h2 id="states">Changes of states</h2>${rows.length > 0 && html`<span class="muted">${changes(rows.length)}</span>`}</div>
    <${Problem} error=${unasked(error)} retry=${retry}/>
    ${value && (rows.length ? html`<${Scroll} label="Changes of states"><table><thead><tr><th scope="col">Time</th>${model === undefined && html`<th scope="col">Model</th>`}<th scope="col">Version</th><th scope="col">State</th><th scope="col">Reason</th></tr></thead>
      <tbody>${rows.map((row, index) => html`<tr key=${index}><th scope="row" class="when">${dateTime(row.at)}</th>
        ${model === undefined && html`<td class="whole">${row.model === null ? html`<span class="muted when">the server</span>` : html`<a class="name" href=${modelLink(row.model)}>${shown(row.model)}</a>`}</td>`}
        <td>${row.version}</td><td><${ChangedState} ...${row}/></td><td class="muted reason-text">${shown(messageOf({ name: row.model, reason: row.reason }))}</td></tr>`)}</tbody></table><//>`
      : html`<p class="empty">Nothing changed yet.</p>`)}</section>`;
}

/** The sequences that clients may continue. */
export function Sequences({ name, version }) {
  const [value, error, retry] = useDocument(`/console/api/models/${encodeURIComponent(name)}/sequences${version ? `?version=${version}` : ''}`, 2000);
  const oldest = value?.oldest ?? [];
  return html`<section class="card" aria-labelledby="sequences"><div class="card-head"><h2 id="sequences">Open sequences</h2>${value && html`<span class="muted">${count(value.count)}${oldest.length < value.count ? `, the oldest ${count(oldest.length)} are shown` : ''}</span>`}</div>
    <${Problem} error=${unasked(error)} retry=${retry}/>
    ${value && (oldest.length ? html`<${Scroll} label="Open sequences"><table><thead><tr><th scope="col">Id</th><th scope="col">Place</th><th scope="col" class="number">Age</th><th scope="col" class="number">Waiting requests</th><th scope="col" class="number">State</th></tr></thead>
      <tbody>${oldest.map(one => html`<tr key=${one.id}><th scope="row">${shown(one.id)}</th><td>${one.instance === null ? html`<span class="state loading">waits for a slot</span>` : `instance ${one.instance}, slot ${one.slot}`}</td>
        <td class="number">${seconds(one.seconds)}</td><td class="number">${count(one.waiting)}</td><td class="number">${one.state_bytes ? bytes(one.state_bytes) : ''}</td></tr>`)}</tbody></table><//>`
      : html`<p class="empty">No client has a sequence open.</p>`)}</section>`;
}

const OUTCOMES = { done: ['Done', 'ready'], failed: ['Failed', 'failed'], abandoned: ['Abandoned', 'loading'] };
const who = ({ automatic, principal, user, address }) => automatic ? 'the server' : principal !== null ? shown(principal) : user !== null ? `user ${user}` : address !== null ? address : 'a client of this machine';

/** The last changes by clients and by the server itself. */
export function Changes() {
  const [value, error, retry] = useDocument('/console/api/changes', 2000);
  return html`<section class="card" aria-labelledby="changes"><div class="card-head"><h2 id="changes">Who changed what</h2>${value?.length > 0 && html`<span class="muted">${changes(value.length)}</span>`}</div>
    <${Problem} error=${unasked(error)} retry=${retry}/>
    ${value && (value.length ? html`<${Scroll} label="Who changed what"><table><thead><tr><th scope="col">Time</th><th scope="col">Who</th><th scope="col">What</th><th scope="col">Model</th><th scope="col">Outcome</th></tr></thead>
      <tbody>${value.toReversed().map((one, index) => {
        const [word, look] = OUTCOMES[one.outcome];
        return html`<tr key=${index}><th scope="row" class="when">${dateTime(one.at)}</th><td>${who(one)}</td><td><span class="mono">${shown(one.request ?? one.action)}</span></td>
          <td>${shown(one.subject ?? '')}</td><td><span class="state ${look}"><span class="dot ${look}"></span>${word}</span>${one.status !== null && html` <span class="muted">${shown(one.status)}</span>`}${one.reason !== null && html`<div class="muted reason-text">${shown(one.reason)}</div>`}</td></tr>`;
      })}</tbody></table><//>` : html`<p class="empty">Nobody changed anything since the start of the server.</p>`)}</section>`;
}
