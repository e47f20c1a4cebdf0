// What the server did during the last hour.

import { html } from './vendor/preact-htm.js';
import { Charts } from './charts.js';
import { Gpus, useGpus } from './gpus.js';
import { States } from './history.js';
import { useTitle } from './parts.js';

export function Activity() {
  useTitle('Activity');
  const gpus = useGpus();
  return html`<h1>Activity</h1><${Charts} gpus=${gpus}/><${Gpus} history=${gpus}/><${States}/>`;
}
