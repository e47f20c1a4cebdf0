// What the server did during the last hour.

import { html } from './vendor/preact-htm.js';
import { Charts } from './charts.js';
import { Gpus, States } from './history.js';
import { useTitle } from './parts.js';

export function Activity() {
  useTitle('Activity');
  return html`<h1>Activity</h1><${Charts}/><${Gpus}/><${States}/>`;
}
