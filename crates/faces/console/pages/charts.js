// Charts of the last hour.

import uPlot from './vendor/uplot.js';
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from './vendor/preact-htm.js';
import { get, repeat, Unreachable } from './api.js';
import { bytes, micros, short, time } from './format.js';
import { gpuCharts } from './gpus.js';
import { BatchMap } from './heat.js';
import {
  AT, BATCH, BATCHES, FAILURES, HITS, INFER, INPUT, LATENCY, MEMORY, MISSES, OUTPUT, PENDING, PROCESSORS, QUANTILES, QUEUE, REQUESTS, SERVER_MEMORY, SERVER_PROCESSORS, SPAN,
} from './live.js';
import { Problem, Segments } from './parts.js';

const POLL_MS = 5000;
const HOUR = 3600;
const HEIGHT = 180;

/** The history of the server, and that of a model if it has a name: `[history, error, retry]`. */
function useHistory(model) {
  const [history, setHistory] = useState();
  const [error, setError] = useState();
  const poll = useRef();
  useEffect(() => {
    let known;
    const query = model === undefined ? 'models=none' : `model=${encodeURIComponent(model)}`;
    const load = async () => {
      try {
        const fresh = await get(`/console/api/history?${query}&after=${known?.at ?? 0}`);
        // A server that was started anew counts from zero.
        if (known && fresh.zero - known.zero > 10_000) {
          known = undefined;
          await load();
          return;
        }
        const kept = samples => samples.filter(sample => sample[AT] > fresh.at - HOUR);
        const models = new Map(known?.models);
        for (const { version, samples } of fresh.models) models.set(version, [...(models.get(version) ?? []), ...samples]);
        for (const [version, samples] of models) models.set(version, kept(samples));
        known = { ...fresh, server: [...kept(known?.server ?? []), ...fresh.server], models };
        setHistory(known);
        setError(undefined);
      } catch (problem) {
        if (!(problem instanceof Unreachable)) setError(problem);
      }
    };
    poll.current = load;
    load();
    return repeat(load, POLL_MS);
  }, [model]);
  return [history, error, () => poll.current?.()];
}

// Quantiles of a row: of half of the requests in five phases, then of 99 %.
const HALF = QUANTILES + 1, MOST = HALF + 5;

/** Rows by tick, with zeros where a model had no requests: its samples are only those of active times. Memory stays. */
function rowsOf(history, samples) {
  if (!samples) return history.server;
  let index = 0;
  let memory = 0;
  return history.server.map(({ [AT]: at }) => {
    while (index < samples.length && samples[index][AT] < at) index += 1;
    const sample = samples[index];
    const covers = sample && sample[AT] - sample[SPAN] < at;
    const row = covers ? [at, ...sample.slice(1)] : [at, ...Array(SPAN).fill(0), null, null];
    if (covers) memory = sample[MEMORY];
    row[MEMORY] = memory;
    return [...row, ...(row[QUANTILES] ?? Array(10).fill(null))];
  });
}

const SIZES = Array.from({ length: 40 }, (_, power) => 2 ** (power + 10));
const CHARTS = [
  { title: 'Requests', unit: '/s', series: [['requests', REQUESTS, '--accent'], ['failures', FAILURES, '--bad']], text: short },
  { title: 'Mean latency of a request', stacked: true, series: [['waiting', QUEUE, '--phase-1'], ['inputs', INPUT, '--phase-2'], ['model', INFER, '--phase-3'], ['outputs', OUTPUT, '--phase-4']], text: micros, total: LATENCY },
  { title: 'Waiting requests', series: [['waiting', PENDING, '--accent']], text: short },
  { title: 'Inferences in an execution', series: [['batch', BATCH, '--accent']], text: short },
];
const CACHE = { title: 'Response cache', unit: 'requests/s', series: [['found', HITS, '--accent'], ['not found', MISSES, '--phase-4']], text: short };
const SERVER_CHARTS = [
  { title: 'Processors busy', stacked: true, series: [['server', SERVER_PROCESSORS, '--phase-3'], ['processes of models', PROCESSORS, '--phase-2']], text: short },
  { title: 'Memory', stacked: true, series: [['server', SERVER_MEMORY, '--phase-3'], ['processes of models', MEMORY, '--phase-2']], text: bytes, steps: SIZES },
];
const PROCESS_CHARTS = [
  { title: 'Processors busy', unit: 'its processes', series: [['processors', PROCESSORS, '--accent']], text: short },
  { title: 'Memory', unit: 'its processes', series: [['memory', MEMORY, '--accent']], text: bytes, steps: SIZES },
];
const phases = first => [['whole request', first, '--bad'], ['waiting', first + 1, '--phase-1'], ['inputs', first + 2, '--phase-2'], ['model', first + 3, '--phase-3'], ['outputs', first + 4, '--phase-4']];
const QUANTILE_CHARTS = [
  { title: 'Latency of half of the requests', unit: 'at most, last minute', series: phases(HALF), text: micros },
  { title: 'Latency of 99 % of the requests', unit: 'at most, last minute', series: phases(MOST), text: micros },
];

/** The charts for what occurs in rows. */
function chartsOf(rows, isModel) {
  const occurs = field => rows.some(row => row[field] > 0);
  const cache = occurs(HITS) || occurs(MISSES) ? [CACHE] : [];
  if (!isModel) return [...CHARTS, ...cache, ...SERVER_CHARTS];
  return [...CHARTS.slice(0, 2), ...(occurs(MOST) ? QUANTILE_CHARTS : []), ...CHARTS.slice(2), ...cache, ...(occurs(MEMORY) ? PROCESS_CHARTS : [])];
}

const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The theme, for what is drawn with its colours. */
function useTheme() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme);
  useEffect(() => {
    const follow = () => setTheme(document.documentElement.dataset.theme);
    addEventListener('theme', follow);
    return () => removeEventListener('theme', follow);
  }, []);
  return theme;
}

function Chart({ chart, zero, rows, from }) {
  const { title, unit, series, text, stacked, steps, most } = chart;
  const holder = useRef();
  const plot = useRef();
  const theme = useTheme();
  const data = useMemo(() => {
    const times = rows.map(row => (zero + row[AT] * 1000) / 1000);
    const columns = series.map(([, field]) => rows.map(row => row[field]));
    // Each line of a stack is the sum of its own values and of those below.
    if (stacked) for (let line = 1; line < columns.length; line += 1) columns[line] = columns[line].map((value, index) => value + columns[line - 1][index]);
    return [times, ...columns];
  }, [rows]);
  const order = stacked ? series.map((_, index) => series.length - 1 - index) : series.map((_, index) => index);
  const drawn = [data[0], ...order.map(index => data[index + 1])];
  useLayoutEffect(() => {
    const [muted, grid] = [colour('--muted'), colour('--line')];
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { stroke: muted, font, grid: { stroke: grid, width: 1 }, ticks: { show: false } };
    const options = {
      width: holder.current.clientWidth, height: HEIGHT, padding: [8, 14, 0, 0], legend: { show: false }, cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
      scales: { x: { time: true, range: (_, low, high) => [Math.max(low, high - HOUR), high] }, y: { range: (_, low, high) => [0, most ?? (high > 0 ? high * 1.08 : 1)] } },
      axes: [{ ...axis, values: (_, times) => times.map(value => value % 60 ? time(value * 1000) : time(value * 1000).replace(/:\d\d(?=\D*$)/, '')), space: 90, size: 26 },
        { ...axis, values: (_, values) => values.map(value => text(value)), size: 62, ...(steps ? { incrs: steps } : {}) }],
      series: [{}, ...order.map(index => {
        const [label, , name] = series[index];
        const stroke = colour(name);
        return { label, stroke, width: 1.5, fill: stacked ? stroke : index === 0 && series.length < 4 ? `${stroke}1f` : undefined, points: { show: false } };
      })],
      hooks: { setCursor: [({ cursor }) => setAt(cursor.idx)] },
    };
    plot.current = new uPlot(options, drawn, holder.current);
    const follow = new ResizeObserver(() => plot.current?.setSize({ width: holder.current.clientWidth, height: HEIGHT }));
    follow.observe(holder.current);
    return () => {
      follow.disconnect();
      plot.current.destroy();
      plot.current = undefined;
    };
  }, [theme]);
  const [at, setAt] = useState();
  useEffect(() => plot.current?.setData(drawn), [data]);
  const row = rows[at ?? rows.length - 1] ?? rows.at(-1);
  const values = series.map(([name, field]) => [name, row && row[field] !== null ? text(row[field]) : '–']);
  return html`<section class="card chart" aria-label=${title}>
    <div class="chart-head"><h2>${title}${unit && html` <span class="muted">${unit}</span>`}</h2>
      <span class="muted number">${row ? time(zero + row[AT] * 1000) : ''}</span></div>
    <div ref=${holder} role="img" aria-label="${title} since ${from}: ${values.map(([name, value]) => `${name} ${value}`).join(', ')} at last"></div>
    <p class="legend">${values.map(([name, value], index) => html`<span key=${name}><i style=${{ background: `var(${series[index][2]})` }}></i>${name} <b class="number">${value}</b></span>`)}</p>
  </section>`;
}

const TIMES = [[300, '5 minutes'], [900, '15 minutes'], [HOUR, '1 hour']];

/** The charts of the server and of its GPUs, or of a version of a model. */
export function Charts({ model, version, gpus }) {
  const [history, error, retry] = useHistory(model);
  const [last, setLast] = useState(900);
  const rows = useMemo(() => {
    if (!history) return [];
    const samples = model === undefined ? undefined : history.models.get(version) ?? [];
    return rowsOf(history, samples).filter(row => row[AT] > history.at - last);
  }, [history, last, version]);
  const theme = useTheme();
  const charts = chartsOf(rows, model !== undefined);
  const since = rows.length ? time(history.zero + rows[0][AT] * 1000) : '';
  const batches = model !== undefined && rows.some(row => row[BATCHES]?.some(share => share > 0));
  return html`<${Problem} error=${error} retry=${retry}/>
    <div class="row"><${Segments} label="Time" options=${TIMES} value=${last} onChange=${setLast}/>
      <span class="muted">one value each ${history?.interval ?? 5} seconds, kept for an hour</span></div>
    ${history && (rows.length ? html`<div class="charts">${charts.map(chart => html`<${Chart} key=${`${chart.title} ${chart.unit}`} chart=${chart} zero=${history.zero} rows=${rows} from=${since}/>`)}
        ${gpuCharts(gpus, last).map(({ chart, rows: own }) => html`<${Chart} key=${`${chart.title} ${chart.series.length}`} chart=${chart} zero=${gpus.zero} rows=${own} from=${time(gpus.zero + own[0][AT] * 1000)}/>`)}
        ${batches && html`<${BatchMap} zero=${history.zero} rows=${rows} from=${since} theme=${theme}/>`}</div>`
      : html`<p class="empty">The first values come ${history.interval} seconds after the start of the server.</p>`)}`;
}
