// Vercel's AI SDK: one task for each command, whose outcome is printed as JSON. With `responses`, it uses the newer form of the interface.

import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { embedMany, generateText, Output, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

const [task, baseURL, apiKey, retries, form] = process.argv.slice(2);
const maxRetries = Number(retries);
const provider =
  form === 'responses'
    ? createOpenAI({ baseURL, apiKey })
    : createOpenAICompatible({ name: 'nereid', baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true });
const CALL = 'say Let me see. <tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>';
const schema = z.object({ name: z.string().max(12), age: z.number().int().min(0).max(150) });
const ask = (prompt, more = {}) => generateText({ model: provider('chat'), prompt, maxRetries, ...more });

async function failure(act) {
  try {
    return { answer: await act() };
  } catch (error) {
    return { kind: error.name, status: error.statusCode, message: error.message, again: error.isRetryable };
  }
}

const tasks = {
  async chat() {
    const answer = await ask('count 3');
    return { text: answer.text, tokens: answer.usage.outputTokens };
  },
  async stream() {
    const answer = streamText({ model: provider('chat'), prompt: 'count 5', maxRetries });
    const parts = [];
    for await (const part of answer.textStream) parts.push(part);
    return { parts, tokens: (await answer.usage).outputTokens };
  },
  async tools() {
    const weather = tool({ inputSchema: z.object({ city: z.string() }), execute: async ({ city }) => `rain in ${city}` });
    const answer = await ask(CALL, { tools: { weather }, stopWhen: stepCountIs(4) });
    return answer.text;
  },
  async structured() {
    const answer = await generateText({
      model: provider('small'),
      prompt: 'Invent a person.',
      maxOutputTokens: 200,
      temperature: 0,
      maxRetries,
      experimental_output: Output.object({ schema }),
    });
    return schema.parse(answer.experimental_output);
  },
  async embed() {
    const model = provider.textEmbeddingModel('vectors');
    return (await embedMany({ model, values: ['a', 'bc', 'def', 'g', 'hi'], maxRetries })).embeddings;
  },
  async errors() {
    const wrong = form === 'responses' ? { openai: { logprobs: 20 } } : { nereid: { logprobs: true, top_logprobs: 99 } };
    return [
      await failure(() => generateText({ model: provider('unknown'), prompt: 'a', maxRetries })),
      await failure(() => ask('a', { providerOptions: wrong })),
    ];
  },
  async limited() {
    return failure(async () => {
      for (let request = 0; request < 100; request += 1) await ask('count 1');
    });
  },
  async again() {
    return [await ask('count 1'), await ask('count 1')].map((answer) => answer.text);
  },
  async leave() {
    const control = new AbortController();
    const answer = streamText({ model: provider('chat'), prompt: 'endless', abortSignal: control.signal, maxRetries });
    for await (const part of answer.textStream) if (part) break;
    control.abort();
    return true;
  },
};

console.log(JSON.stringify(await tasks[task]()));
