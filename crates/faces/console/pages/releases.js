// The release of a model: how its versions share the requests, which of them proved itself, and decisions by hand.

import { html, useState } from './vendor/preact-htm.js';
import { modelPath, post, useDocument } from './api.js';
import { count, dateTime, micros, shown } from './format.js';
import { Problem, Scroll } from './parts.js';

const LOOKS = { established: 'ready', promoted: 'ready', candidate: 'loading', withdrawn: 'failed', replaced: 'idle' };
const WORDS = { established: 'Established', promoted: 'Promoted', candidate: 'Candidate', withdrawn: 'Withdrawn', replaced: 'Replaced' };
const percent = share => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;

function Differences({ differences }) {
  return html`<section class="card" aria-labelledby="differences"><div class="card-head"><h2 id="differences">Answers that differed</h2><span class="muted">the last ${count(differences.length)}</span></div>
    <${Scroll} label="Answers that differed"><table><thead><tr><th scope="col">Time</th><th scope="col">Request</th><th scope="col">Versions</th><th scope="col">Output</th><th scope="col">Difference</th></tr></thead>
      <tbody>${differences.toReversed().map((one, index) => html`<tr key=${index}><th scope="row">${dateTime(one.time_ms)}</th><td>${shown(one.request_id)}</td>
        <td>${one.established} and ${one.candidate}</td><td>${shown(one.output)}</td><td>${shown(one.difference)}</td></tr>`)}</tbody></table><//></section>`;
}

/** Buttons that promote and withdraw the candidates. */
function Decisions({ name, candidates, decided }) {
  const [running, setRunning] = useState(false);
  const [error, setError] = useState();
  const decide = async (action, version) => {
    setRunning(true);
    setError(undefined);
    try {
      await post(`${modelPath(name)}/release`, { [action]: version });
    } catch (error) {
      setError(error);
    }
    setRunning(false);
    decided();
  };
  return html`<div class="card-body">${candidates.map(({ version }) => html`<div class="row" key=${version}>
      <button type="button" disabled=${running} onClick=${() => decide('promote', version)}>Promote version ${version}</button>
      <button type="button" disabled=${running} onClick=${() => decide('withdraw', version)}>Withdraw version ${version}</button></div>`)}
    ${error && html`<${Problem} error=${error}/>`}</div>`;
}

export function Release({ name }) {
  const [value, error, retry] = useDocument(`${modelPath(name)}/release`, 2000);
  if (!value) return html`<${Problem} error=${error} retry=${retry}/>`;
  const { versions, differences } = value;
  const candidates = versions.filter(one => one.part === 'candidate');
  return html`<section class="card" aria-labelledby="release"><div class="card-head"><h2 id="release">Release</h2><span class="muted">requests that name no version are split among these</span></div>
    <${Scroll} label="Versions of the release"><table><thead><tr><th scope="col">Version</th><th scope="col">Part</th><th scope="col">Share</th><th scope="col" class="number">Requests</th><th scope="col" class="number">Failed</th>
      <th scope="col" class="number">Half within</th><th scope="col" class="number">95 % within</th><th scope="col" class="number">Copies</th><th scope="col" class="number">Equal</th><th scope="col" class="number">Different</th></tr></thead>
      <tbody>${versions.map(one => html`<tr key=${one.version}><th scope="row">${one.version}</th><td><span class="state ${LOOKS[one.part] ?? 'idle'}"><span class="dot ${LOOKS[one.part] ?? 'idle'}"></span>${WORDS[one.part] ?? one.part}</span></td>
        <td><div class="share"><div class="track" aria-hidden="true"><div style=${{ width: `${100 * one.share}%` }}></div></div><span class="number">${percent(one.share)}</span></div></td>
        <td class="number">${count(one.requests)}</td><td class="number">${one.errors ? html`<span class="state failed">${count(one.errors)} of ${count(one.results)}</span>` : `0 of ${count(one.results)}`}</td>
        <td class="number">${one.median_latency_us ? micros(one.median_latency_us) : ''}</td><td class="number">${one.p95_latency_us ? micros(one.p95_latency_us) : ''}</td>
        <td class="number">${count(one.copies)}${one.copies_skipped > 0 && html` <span class="muted">${count(one.copies_skipped)} skipped</span>`}</td><td class="number">${count(one.answers_equal)}</td><td class="number">${count(one.answers_different)}</td></tr>`)}</tbody></table><//>
    ${versions.filter(one => one.reason).map(one => html`<div class="card-body" key=${one.version}><div class="note ${one.part === 'withdrawn' ? 'bad' : ''}">Version ${one.version} was ${one.part}: ${shown(one.reason)}</div></div>`)}
    ${candidates.length > 0 && html`<${Decisions} name=${name} candidates=${candidates} decided=${retry}/>`}
  </section>
  ${differences?.length > 0 && html`<${Differences} differences=${differences}/>`}`;
}
