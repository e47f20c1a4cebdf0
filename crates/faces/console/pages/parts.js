// Small parts that several pages use.

import { html, useEffect, useRef, useState } from './vendor/preact-htm.js';
import { keep, Unreachable } from './api.js';
import { shown } from './format.js';

/** The word and the look of a version's state. */
export function stateOf({ state, reason }) {
  switch (state) {
    case 'READY': return reason ? ['Reload failed', 'failed'] : ['Ready', 'ready'];
    case 'LOADING': return ['Loading', 'loading'];
    case 'UNLOADING': return ['Unloading', 'loading'];
    case 'UNLOADED': return ['On demand', 'idle'];
    case 'UNAVAILABLE': return reason === 'unloaded' ? ['Unloaded', 'idle'] : ['Failed', 'failed'];
    default: return ['Not loaded', 'idle'];
  }
}

/** Whether a version's message is one that somebody has to act on. */
export const isFailing = row => stateOf(row)[1] === 'failed';

/** A version's message, without the name of its model in front, which the pages show anyway. */
export function messageOf({ name, reason }) {
  const prefix = `model '${name}': `;
  return reason?.startsWith(prefix) ? reason.slice(prefix.length) : reason ?? '';
}

export function State({ row }) {
  const [word, look] = stateOf(row);
  return html`<span class="state ${look}"><span class="dot ${look}"></span>${word}</span>`;
}

/** A line of the last minutes. `values` are numbers from oldest to newest, or null. */
export function Spark({ values, top, bad, label }) {
  const most = Math.max(top ?? 0, ...values.map(value => value ?? 0));
  if (values.length < 2 || most === 0) {
    return html`<span class="spark"><svg viewBox="0 0 100 22" preserveAspectRatio="none" aria-hidden="true"><path d="M0 21H100" opacity=".35"/></svg></span>`;
  }
  const step = 100 / (values.length - 1);
  const points = values.map((value, index) => `${(index * step).toFixed(1)} ${(21 - 19 * (value ?? 0) / most).toFixed(1)}`);
  const line = `M${points.join('L')}`;
  return html`<span class="spark ${bad ? 'bad' : ''}">
    <svg viewBox="0 0 100 22" preserveAspectRatio="none" role=${label ? 'img' : undefined} aria-label=${label} aria-hidden=${label ? undefined : 'true'}>
      <path class="area" d="${line}L100 22L0 22Z"/><path d=${line}/>
    </svg></span>`;
}

/** A value of each tick in the last seconds from samples that may be missing: that of a field, or of a function of the sample. */
export function timeline(samples, at, interval, seconds, field, span) {
  const values = [];
  let index = 0;
  for (let tick = at - seconds + interval; tick <= at; tick += interval) {
    while (index < samples.length && samples[index][0] < tick - interval / 2) index += 1;
    const sample = samples[index];
    const covers = sample && sample[0] - (span === undefined ? interval : sample[span]) < tick - interval / 2;
    values.push(covers ? (typeof field === 'function' ? field(sample) : sample[field]) : 0);
  }
  return values;
}

/** What went wrong, with a field for the key where the API is restricted. */
export function Problem({ error, retry, what }) {
  const [key, setKey] = useState('');
  if (!error) return null;
  if (error instanceof Unreachable) return html`<div class="note warn" role="status">The server does not answer at the moment.</div>`;
  const submit = event => {
    event.preventDefault();
    keep(error.header, key);
    retry?.();
  };
  return html`<div class="note bad" role="alert">
    ${what ? `${what}: ` : ''}${shown(error.message)}
    ${error.header && html`<form onSubmit=${submit}>
      <label class="row">Key for ${shown(error.header)} <input type="password" autocomplete="off" value=${key} onInput=${event => setKey(event.target.value)}/></label>
      <button class="primary">Use this key</button>
    </form>`}
  </div>`;
}

/** Buttons of which one is pressed. */
export function Segments({ label, options, value, onChange }) {
  return html`<div class="segments" role="group" aria-label=${label}>
    ${options.map(([key, text]) => html`<button type="button" key=${key} aria-pressed=${String(key === value)} onClick=${() => onChange(key)}>${text}</button>`)}
  </div>`;
}

/** A button that copies a text. */
export function Copy({ text, label = 'Copy' }) {
  const [done, setDone] = useState(false);
  const timer = useRef();
  useEffect(() => () => clearTimeout(timer.current), []);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Browsers have a clipboard only for pages from this machine or over TLS.
      const area = document.createElement('textarea');
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand('copy');
      area.remove();
    }
    setDone(true);
    timer.current = setTimeout(() => setDone(false), 1500);
  };
  return html`<button type="button" onClick=${copy}>${done ? 'Copied' : label}</button>`;
}

/** A part that scrolls sideways where it is too wide, with the keys of arrows, too. */
export const Scroll = ({ label, children }) => html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>${children}</div>`;

/** The title of the document. */
export function useTitle(title) {
  useEffect(() => {
    document.title = title ? `${title} · Nereid` : 'Nereid';
  }, [title]);
}
