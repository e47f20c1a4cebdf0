// Sound for inputs: from a file or the microphone, in the rate and the form that a model takes.

import { html, useEffect, useRef, useState } from './vendor/preact-htm.js';
import { isFloat } from './tensors.js';

const HEIGHT = 60;
const WIDTH = 480;
/** Samples of a sound: five minutes at 48 kHz. */
const MOST = 48000 * 300;

/** Whether an input can take sound: its last dimension has any size, and all others have or may have one of 1. */
export const takesAudio = ({ datatype, shape }) => ['FP32', 'FP16', 'BF16', 'FP64', 'INT16'].includes(datatype) && shape.length > 0
  && shape.at(-1) < 0 && shape.slice(0, -1).every(size => size < 0 || size === 1);

/** The samples of a sound in one channel at a rate, from -1 to 1. */
async function samplesOf(bytes, rate) {
  // A context of the rate resamples what it decodes.
  const decoded = await new OfflineAudioContext(1, 1, rate).decodeAudioData(bytes);
  if (decoded.length > MOST) throw new Error('longer than five minutes');
  const mono = new OfflineAudioContext(1, Math.max(1, decoded.length), rate);
  const source = mono.createBufferSource();
  source.buffer = decoded;
  source.connect(mono.destination);
  source.start();
  return (await mono.startRendering()).getChannelData(0);
}

function draw(canvas, samples) {
  [canvas.width, canvas.height] = [WIDTH, HEIGHT];
  const context = canvas.getContext('2d');
  context.fillStyle = getComputedStyle(canvas).color;
  for (let column = 0; column < WIDTH; column += 1) {
    const [from, to] = [column, column + 1].map(place => Math.floor(place * samples.length / WIDTH));
    let peak = 0;
    for (let index = from; index < Math.max(to, from + 1); index += 1) peak = Math.max(peak, Math.abs(samples[index] ?? 0));
    const height = Math.max(1, peak * HEIGHT);
    context.fillRect(column, (HEIGHT - height) / 2, 1, height);
  }
}

/** A field for a file, a button for the microphone, and the sound as it is sent. */
export function AudioInput({ input, state, set, label }) {
  const canvas = useRef();
  const recorder = useRef();
  const [sound, setSound] = useState();
  const [recording, setRecording] = useState(false);
  const [error, setError] = useState();
  useEffect(() => () => recorder.current?.stream.getTracks().forEach(track => track.stop()), []);
  useEffect(() => {
    if (!sound) return undefined;
    let ended = false;
    (async () => {
      try {
        const samples = await samplesOf(sound.slice(0), state.rate);
        if (ended) return;
        draw(canvas.current, samples);
        const values = isFloat(input.datatype) ? Array.from(samples) : Array.from(samples, sample => Math.round(Math.max(-1, Math.min(1, sample)) * 32767));
        set({ samples: values, sizes: input.shape.map((_, index) => index === input.shape.length - 1 ? values.length : 1) });
        setError(undefined);
      } catch (problem) {
        if (!ended) setError(`This is no sound that the browser can read (${problem.message}).`);
      }
    })();
    return () => {
      ended = true;
    };
  }, [sound, state.rate]);
  const choose = async event => {
    const [file] = event.target.files;
    if (file) setSound(await file.arrayBuffer());
  };
  const record = async () => {
    if (recording) return recorder.current.stop();
    try {
      const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
      const parts = [];
      recorder.current = new MediaRecorder(stream);
      recorder.current.ondataavailable = ({ data }) => parts.push(data);
      recorder.current.onstop = async () => {
        stream.getTracks().forEach(track => track.stop());
        setRecording(false);
        setSound(await new Blob(parts).arrayBuffer());
      };
      recorder.current.start();
      setRecording(true);
    } catch (problem) {
      setError(`The microphone cannot be used: ${problem.message}`);
    }
    return undefined;
  };
  return html`<div class="row ends">
      <label class="field"><span>Sound file</span><input type="file" accept="audio/*" aria-label="${label}, sound file" onChange=${choose}/></label>
      ${navigator.mediaDevices && html`<button type="button" aria-pressed=${String(recording)} onClick=${record}>${recording ? 'Stop' : 'Record'}</button>`}
      <label class="field"><span>Samples a second</span><input type="number" min="8000" max="96000" value=${state.rate} aria-label="${label}, samples a second"
        onChange=${event => set({ rate: Math.min(96000, Math.max(8000, Math.floor(Number(event.target.value)) || 16000)) })}/></label></div>
    ${error && html`<p class="state failed" role="alert">${error}</p>`}
    <canvas ref=${canvas} hidden=${!state.samples} role="img" aria-label="The sound as the model gets it"></canvas>`;
}
