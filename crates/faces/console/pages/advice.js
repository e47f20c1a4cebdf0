// What is wrong with a model that is not served, and what would be right.

import { html } from './vendor/preact-htm.js';
import { useDocument } from './api.js';
import { shown } from './format.js';

/** What `nereid check` finds of a model, beyond its message. Nothing where it may not be read. */
export function Advice({ name, reason }) {
  const [found] = useDocument(`/console/api/models/${encodeURIComponent(name)}/advice`);
  const more = (found ?? []).filter(({ place, message }) => !reason.includes(message) || !reason.includes(place));
  // Repetitions of the message are left out.
  const rest = message => reason && message.startsWith(reason) && message.length > reason.length ? message.slice(reason.length).replace(/^[;:,.\s]+/, '') : message;
  if (!more.length) return null;
  return html`<div class="advice"><h3>What the check of its files finds</h3><ul>${more.map(({ is_problem: isProblem, place, field, message }, index) => html`<li key=${index}>
    <span class="tag">${isProblem ? 'problem' : 'warning'}</span> <span class="mono">${shown(place)}</span>${field && html` <span class="mono">${shown(field)}</span>`}<div>${shown(rest(message))}</div></li>`)}</ul></div>`;
}
