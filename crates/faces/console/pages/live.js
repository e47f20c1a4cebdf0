// What every page shows of the server at the moment: its models, their recent activity, and whether it answers.

import { useEffect, useState } from './vendor/preact-htm.js';
import { get, repeat, request, Unreachable } from './api.js';

const MODELS_MS = 2000;
const HISTORY_MS = 5000;
// The list of the repository may have changed though nothing was loaded.
const LISTING_MS = 30000;
/** Seconds that sparklines show. */
export const SPARK_SECONDS = 300;

const listeners = new Set();

/** The state. It is replaced as a whole. */
let state = {
  online: true, server: undefined, models: undefined, fetches: [], error: undefined, listed: 0, tag: undefined,
  at: 0, interval: 5, total: [], activity: new Map(), historyError: undefined,
};

function update(change) {
  state = { ...state, ...change };
  listeners.forEach(listener => listener(state));
}

/** The key of a version's activity. */
export const activityKey = (name, version) => `${version ?? ''} ${name}`;

async function pollServer() {
  try {
    const server = await get('/console/api/server');
    const restarted = state.server && state.server.started !== server.started;
    update({ online: true, server, ...(restarted ? { at: 0, total: [], activity: new Map(), tag: undefined } : {}) });
  } catch (error) {
    update(error instanceof Unreachable ? { online: false } : { online: true });
  }
}

/** Loads the models, if they changed. */
export async function pollModels(anew = false) {
  const stale = anew || Date.now() - state.listed > LISTING_MS;
  try {
    const headers = state.tag && !stale ? { 'If-None-Match': state.tag } : {};
    const answer = await request('/console/api/models', { headers });
    if (answer.status === 304) {
      if (!state.online || state.error) update({ online: true, error: undefined });
      return;
    }
    const { models, fetches } = await answer.json();
    update({ online: true, models, fetches, error: undefined, tag: answer.headers.get('etag'), listed: Date.now() });
  } catch (error) {
    update(error instanceof Unreachable ? { online: false } : { online: true, error });
  }
}

async function pollHistory() {
  try {
    const fresh = await get(`/console/api/history?after=${state.at}&last=${SPARK_SECONDS}`);
    const oldest = fresh.at - SPARK_SECONDS;
    const kept = samples => samples.filter(sample => sample[0] > oldest);
    const activity = new Map();
    for (const [key, samples] of state.activity) {
      const left = kept(samples);
      if (left.length) activity.set(key, left);
    }
    for (const { name, version, samples } of fresh.models) {
      const key = activityKey(name, version);
      activity.set(key, [...(activity.get(key) ?? []), ...samples]);
    }
    const total = [...kept(state.total), ...fresh.server];
    update({ at: fresh.at, interval: fresh.interval, total, activity, historyError: undefined });
  } catch (error) {
    if (!(error instanceof Unreachable)) update({ historyError: error });
  }
}

/** Begins to poll. */
export async function start() {
  pollServer();
  pollModels();
  pollHistory();
  repeat(pollServer, MODELS_MS);
  repeat(pollModels, MODELS_MS);
  repeat(pollHistory, HISTORY_MS);
}

/** The state, for a component that follows it. */
export function useLive() {
  const [value, setValue] = useState(state);
  useEffect(() => {
    listeners.add(setValue);
    setValue(state);
    return () => listeners.delete(setValue);
  }, []);
  return value;
}

// Indices of a sample's fields. Processors and memory are those of models' processes.
export const AT = 0, REQUESTS = 1, FAILURES = 2, LATENCY = 3, QUEUE = 4, INPUT = 5, INFER = 6, OUTPUT = 7, BATCH = 8, PENDING = 9, HITS = 10, MISSES = 11, PROCESSORS = 12, MEMORY = 13;
/** Of a model: the seconds that the sample covers, and on its own page the shares of batch sizes, and quantiles of latencies if the server keeps them. */
export const SPAN = 14, BATCHES = 15, QUANTILES = 16;
/** Of the server: its own process. */
export const SERVER_PROCESSORS = 14, SERVER_MEMORY = 15;
/** What the server and models' processes use together. */
export const allProcessors = sample => sample[PROCESSORS] + sample[SERVER_PROCESSORS];
export const allMemory = sample => sample[MEMORY] + sample[SERVER_MEMORY];

/** The last sample of a model, if it is not older than the last tick by more than it covers. */
export function latest(samples, at, interval) {
  const last = samples?.at(-1);
  return last && at - last[AT] < Math.max(last[SPAN], interval) + interval ? last : undefined;
}
