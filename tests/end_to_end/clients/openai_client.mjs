// OpenAI's client for JavaScript: one task for each command, whose outcome is printed as JSON.

import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';

const [task, baseURL, apiKey, retries] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: Number(retries) });
const CALL = 'say Let me see. <tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>';
const PARAMETERS = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
const Person = z.object({ name: z.string().max(12), age: z.number().int().min(0).max(150) });
const ask = (content, more = {}) => client.chat.completions.create({ model: 'chat', messages: [{ role: 'user', content }], ...more });

async function failure(act) {
  try {
    return { answer: await act() };
  } catch (error) {
    return { kind: error.constructor.name, status: error.status, message: error.message, code: error.code };
  }
}

const tasks = {
  async chat() {
    const answer = await ask('count 3');
    return { text: answer.choices[0].message.content, tokens: answer.usage.completion_tokens };
  },
  async stream() {
    const chunks = [];
    for await (const chunk of await ask('count 5', { stream: true, stream_options: { include_usage: true } })) chunks.push(chunk);
    return { parts: chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.delta.content ?? '')), tokens: chunks.at(-1).usage.completion_tokens };
  },
  async tools() {
    const weather = ({ city }) => `rain in ${city}`;
    const runner = client.chat.completions.runTools({
      model: 'chat',
      messages: [{ role: 'user', content: CALL }],
      tools: [{ type: 'function', function: { name: 'weather', parameters: PARAMETERS, parse: JSON.parse, function: weather } }],
    });
    return runner.finalContent();
  },
  async structured() {
    const messages = [{ role: 'user', content: 'Invent a person.' }];
    const answer = await client.chat.completions.parse({ model: 'small', messages, max_tokens: 200, temperature: 0, response_format: zodResponseFormat(Person, 'person') });
    return Person.parse(answer.choices[0].message.parsed);
  },
  // The client requests base64 and decodes it.
  async embed() {
    const answer = await client.embeddings.create({ model: 'vectors', input: ['a', 'bc', 'def', 'g', 'hi'] });
    return answer.data.map((entry) => entry.embedding);
  },
  async responses() {
    const first = await client.responses.create({ model: 'chat', input: 'count 2' });
    const stream = client.responses.stream({ model: 'chat', input: 'count 3', previous_response_id: first.id });
    const parts = [];
    for await (const event of stream) if (event.type === 'response.output_text.delta') parts.push(event.delta);
    const final = await stream.finalResponse();
    return { first: first.output_text, parts, tokens: final.usage.output_tokens, previous: final.previous_response_id === first.id };
  },
  async errors() {
    return [await failure(() => ask('a', { model: 'unknown' })), await failure(() => ask('a', { logprobs: true, top_logprobs: 99 }))];
  },
  async limited() {
    return failure(async () => {
      for (let request = 0; request < 100; request += 1) await ask('count 1');
    });
  },
  async again() {
    return [await ask('count 1'), await ask('count 1')].map((answer) => answer.choices[0].message.content);
  },
  async leave() {
    const control = new AbortController();
    const stream = await client.chat.completions.create(
      { model: 'chat', messages: [{ role: 'user', content: 'endless' }], stream: true },
      { signal: control.signal },
    );
    for await (const chunk of stream) if (chunk.choices[0].delta.content) break;
    control.abort();
    return true;
  },
};

console.log(JSON.stringify(await tasks[task]()));
