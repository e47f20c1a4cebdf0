// LangChain for JavaScript: one task for each command, whose outcome is printed as JSON.

import { HumanMessage, ToolMessage } from '@langchain/core/messages';
import { tool } from '@langchain/core/tools';
import { ChatOpenAI, OpenAIEmbeddings } from '@langchain/openai';
import { z } from 'zod';

const [task, baseURL, apiKey, retries] = process.argv.slice(2);
const common = { apiKey, maxRetries: Number(retries), configuration: { baseURL } };
const model = (name = 'chat', more = {}) => new ChatOpenAI({ model: name, ...common, ...more });
const CALL = 'say Let me see. <tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>';
const Person = z.object({ name: z.string().max(12), age: z.number().int().min(0).max(150) });

async function failure(act) {
  try {
    return { answer: await act() };
  } catch (error) {
    return { kind: error.name, status: error.status, message: error.message };
  }
}

const tasks = {
  async chat() {
    const answer = await model().invoke('count 3');
    return { text: answer.content, tokens: answer.usage_metadata.output_tokens };
  },
  async stream() {
    const parts = [];
    let whole;
    for await (const chunk of await model().stream('count 5')) {
      parts.push(chunk.content);
      whole = whole ? whole.concat(chunk) : chunk;
    }
    return { parts, tokens: whole.usage_metadata.output_tokens };
  },
  async tools() {
    const weather = tool(({ city }) => `rain in ${city}`, { name: 'weather', description: 'The weather.', schema: z.object({ city: z.string() }) });
    const able = model().bindTools([weather]);
    const messages = [new HumanMessage(CALL)];
    const answer = await able.invoke(messages);
    const [call] = answer.tool_calls;
    messages.push(answer, new ToolMessage({ content: await weather.invoke(call.args), tool_call_id: call.id }));
    return (await able.invoke(messages)).content;
  },
  async structured() {
    return Person.parse(await model('small', { maxTokens: 200, temperature: 0 }).withStructuredOutput(Person, { method: 'jsonSchema' }).invoke('Invent a person.'));
  },
  async embed() {
    return new OpenAIEmbeddings({ model: 'vectors', ...common }).embedDocuments(['a', 'bc', 'def', 'g', 'hi']);
  },
  async errors() {
    return [
      await failure(() => model('unknown').invoke('a')),
      await failure(() => model('chat', { logprobs: true, topLogprobs: 99 }).invoke('a')),
    ];
  },
  async limited() {
    return failure(async () => {
      for (let request = 0; request < 100; request += 1) await model().invoke('count 1');
    });
  },
  async again() {
    return [await model().invoke('count 1'), await model().invoke('count 1')].map((answer) => answer.content);
  },
  async leave() {
    const control = new AbortController();
    const stream = await model().stream('endless', { signal: control.signal });
    for await (const chunk of stream) if (chunk.content) break;
    control.abort();
    return true;
  },
};

console.log(JSON.stringify(await tasks[task]()));
