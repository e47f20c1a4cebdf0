// The GPUs at the moment and in the last hour.

import { html, useEffect, useState } from './vendor/preact-htm.js';
import { get, repeat, Unreachable } from './api.js';
import { bytes, short, shown } from './format.js';
import { Scroll } from './parts.js';

const POLL_MS = 5000;
const HOUR = 3600;
// Indices of a sample's fields.
const AT = 0, BUSY = 1, MEMORY = 2, POWER = 3;
// Colours of lines, which repeat from the seventh GPU on.
const COLOURS = ['--phase-3', '--phase-4', '--phase-0', '--phase-5', '--phase-2', '--phase-1'];
const SIZES = Array.from({ length: 40 }, (_, power) => 2 ** (power + 10));

/** The history of the GPUs: `{ zero, at, gpus }`. All of it comes at first, and then what is new. */
export function useGpus() {
  const [history, setHistory] = useState();
  useEffect(() => {
    let known;
    const load = async () => {
      try {
        const fresh = await get(`/console/api/gpus?after=${known?.at ?? 0}`);
        // After a restart, the server counts from zero.
        if (known && fresh.zero - known.zero > 10_000) {
          known = undefined;
          await load();
          return;
        }
        const before = new Map(known?.gpus.map(({ name, samples }) => [name, samples]));
        const gpus = fresh.gpus.map(gpu => ({ ...gpu, samples: [...(before.get(gpu.name) ?? []), ...gpu.samples].filter(sample => sample[AT] > fresh.at - HOUR) }));
        known = { ...fresh, gpus };
        setHistory(known);
      } catch (error) {
        // Without the right, the page has no GPUs.
        if (!(error instanceof Unreachable)) setHistory(undefined);
      }
    };
    load();
    return repeat(load, POLL_MS);
  }, []);
  return history;
}

/** Rows with a field of all GPUs, by time. */
function rowsOf(gpus, field, from) {
  const rows = new Map();
  gpus.forEach(({ samples }, index) => {
    for (const sample of samples) {
      if (sample[AT] <= from || sample[field] === null) continue;
      if (!rows.has(sample[AT])) rows.set(sample[AT], [sample[AT], ...Array(gpus.length).fill(null)]);
      rows.get(sample[AT])[index + 1] = sample[field];
    }
  });
  return [...rows.values()].sort((one, other) => one[AT] - other[AT]);
}

/** The charts for what the GPUs report in the last seconds, with their rows. */
export function gpuCharts(history, last) {
  if (!history?.gpus.length) return [];
  const series = history.gpus.map((_, index) => [`GPU ${index}`, index + 1, COLOURS[index % COLOURS.length]]);
  const charts = [
    [BUSY, { title: 'GPUs busy', series, text: value => `${Math.round(100 * value)} %`, most: 1 }],
    [MEMORY, { title: 'Memory of GPUs in use', series, text: bytes, steps: SIZES }],
  ];
  return charts.map(([field, chart]) => ({ chart, rows: rowsOf(history.gpus, field, history.at - last) })).filter(({ rows }) => rows.length);
}

/** The GPUs, if there are any. */
export function Gpus({ history }) {
  if (!history?.gpus.length) return null;
  return html`<section class="card" aria-labelledby="gpus"><div class="card-head"><h2 id="gpus">GPUs</h2></div><${Scroll} label="GPUs"><table><thead><tr><th scope="col">GPU</th><th scope="col">Memory</th><th scope="col" class="number">In use</th><th scope="col" class="number">Busy</th><th scope="col" class="number">Power</th></tr></thead>
    <tbody>${history.gpus.map(({ name, memory_total: total, samples }, index) => {
      const now = samples.at(-1) ?? [];
      const used = now[MEMORY] ?? null;
      return html`<tr key=${name}><th scope="row">${index} <span class="muted mono">${shown(name)}</span></th>
        <td>${used !== null && total > 0 && html`<div class="track" aria-hidden="true"><div style=${{ width: `${100 * used / total}%` }}></div></div>`}</td><td class="number">${used === null ? '' : `${bytes(used)}${total ? ` of ${bytes(total)}` : ''}`}</td>
        <td class="number">${typeof now[BUSY] === 'number' ? `${Math.round(100 * now[BUSY])} %` : ''}</td><td class="number">${typeof now[POWER] === 'number' ? `${short(now[POWER])} W` : ''}</td></tr>`;
    })}</tbody></table><//></section>`;
}
