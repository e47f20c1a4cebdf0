// The request of the form in other languages, to copy.

import { elements } from './tensors.js';
import { WRITTEN } from './inputs.js';

const NUMPY = {
  BOOL: 'bool', UINT8: 'np.uint8', INT8: 'np.int8', UINT16: 'np.uint16', INT16: 'np.int16', UINT32: 'np.uint32', INT32: 'np.int32',
  UINT64: 'np.uint64', INT64: 'np.int64', FP16: 'np.float16', FP32: 'np.float32', FP64: 'np.float64', BYTES: 'np.object_',
};

/** A JSON text in ASCII: nothing in it is invisible or changes the direction of what follows. */
const ascii = value => JSON.stringify(value).replace(/[\u007f-\uffff]/g, unit => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`);

/** An argument of a shell. */
const quoted = text => `'${text.replaceAll("'", "'\\''")}'`;

/** A text in Python, where characters beyond the basic plane have an escape of their own. */
function pythonText(text) {
  const escapes = [...text].map(character => {
    const code = character.codePointAt(0);
    if (code > 0xffff) return `\\U${code.toString(16).padStart(8, '0')}`;
    return code > 0x7e || code < 0x20 ? `\\u${code.toString(16).padStart(4, '0')}` : character === '"' || character === '\\' ? `\\${character}` : character;
  });
  return `"${escapes.join('')}"`;
}

function python(value) {
  if (Array.isArray(value)) return `[${value.map(python).join(', ')}]`;
  if (typeof value === 'string') return pythonText(value);
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  return String(value);
}

const isWritten = ({ values, shape }) => values && elements(shape) <= WRITTEN;

/** An address of the model. */
const address = (model, version) => `/v2/models/${encodeURIComponent(model).replaceAll("'", '%27')}${version ? `/versions/${version}` : ''}`;

/** Inputs as JSON: values where they are few, an example of one otherwise. */
function jsonInputs(inputs) {
  return inputs.map(({ name, datatype, shape, values }) => ({
    name, datatype, shape, data: isWritten({ values, shape }) ? values.map(value => typeof value === 'bigint' ? Number(value) : value) : ['the values, in order'],
  }));
}

export function curl(known) {
  const [url, body] = bodyOf(known);
  return `curl ${known.streamed ? '--no-buffer ' : ''}${quoted(url)} \\\n  --data ${quoted(ascii(body))}\n`;
}

/** Address and body of the request. */
function bodyOf({ origin, model, version, inputs, parameters, streamed, flat }) {
  const body = streamed ? flat : { ...(Object.keys(parameters).length ? { parameters } : {}), inputs: jsonInputs(inputs) };
  return [`${origin}${address(model, version)}/${streamed ? 'generate_stream' : 'infer'}`, body];
}

export function javascript(known) {
  const [url, body] = bodyOf(known);
  const lines = [
    '// Node.js, or a page of an origin that --http-cors-origin allows', `const answer = await fetch(${ascii(url)}, {`, '  method: "POST",', `  body: JSON.stringify(${ascii(body)}),`, '});',
    'if (!answer.ok) throw new Error(await answer.text());',
  ];
  lines.push(...(known.streamed ? ['const decoder = new TextDecoder();', 'for await (const bytes of answer.body) console.log(decoder.decode(bytes, { stream: true }));'] : ['console.log(JSON.stringify(await answer.json()));']));
  return `${lines.join('\n')}\n`;
}

export function rust(known) {
  const [url, body] = bodyOf(known);
  const text = ascii(body);
  // The delimiter of the raw text has more signs than any run of them in the body.
  const longest = Math.max(0, ...[...text.matchAll(/"(#*)/g)].map(([, signs]) => signs.length));
  const signs = '#'.repeat(longest + 1);
  const lines = ['// cargo add ureq', 'fn main() -> Result<(), Box<dyn std::error::Error>> {', `    let body = r${signs}"${text}"${signs};`, `    let mut answer = ureq::post(${ascii(url)}).header("Content-Type", "application/json").send(body)?;`];
  lines.push(...(known.streamed ? ['    std::io::copy(&mut answer.body_mut().as_reader(), &mut std::io::stdout())?;'] : ['    println!("{}", answer.body_mut().read_to_string()?);']));
  return `${[...lines, '    Ok(())', '}'].join('\n')}\n`;
}

export function tritonclient(protocol, { host, model, version, inputs, parameters, streamed }) {
  const grpc = protocol === 'grpc';
  const lines = [
    '# pip install "tritonclient[all]"', 'import numpy as np', `import tritonclient.${protocol} as triton`, '',
    `client = triton.InferenceServerClient(${pythonText(grpc ? `${host}:8001` : host)})${grpc ? '  # the port of --grpc-port' : ''}`, 'inputs = []', '',
  ];
  for (const { name, datatype, shape, values } of inputs) {
    const type = NUMPY[datatype] ?? 'np.float32';
    const array = isWritten({ values, shape })
      ? `np.array(${datatype === 'BYTES' ? `[text.encode() for text in ${python(values)}]` : python(values)}, dtype=${type}).reshape(${python(shape)})`
      : `np.zeros(${python(shape)}, dtype=${type})  # your values`;
    lines.push(`array = ${array}`, `tensor = triton.InferInput(${pythonText(name)}, ${python(shape)}, ${pythonText(datatype)})`, 'tensor.set_data_from_numpy(array)', 'inputs.append(tensor)', '');
  }
  const options = Object.entries(parameters).map(([key, value]) => `, ${/^sequence_(id|start|end)$|^priority$|^timeout$/.test(key) ? key : undefined}=${python(value)}`).filter(text => !text.startsWith(', undefined'));
  const call = `${pythonText(model)}, inputs${version ? `, model_version=${pythonText(version)}` : ''}${options.join('')}`;
  if (streamed && grpc) {
    lines.push('def show(result, error):', '    print(error or result.get_response())', '', 'client.start_stream(show)', `client.async_stream_infer(${call})`, 'client.stop_stream()  # waits for the last response');
  } else if (streamed) {
    return '# Streams of responses: tritonclient has them over gRPC only.\n';
  } else {
    lines.push(`result = client.infer(${call})`, 'for output in result.get_response()' + (grpc ? '.outputs:' : '["outputs"]:'), `    name = output${grpc ? '.name' : '["name"]'}`, '    print(name, result.as_numpy(name))');
  }
  return `${lines.join('\n')}\n`;
}

/** A conversation by curl, through OpenAI's interface. */
export const chatCurl = ({ origin, model, messages }) => `curl -N ${origin}/v1/chat/completions \\
  -H 'Content-Type: application/json' \\
  -d ${quoted(ascii({ model, messages, stream: true }))}
`;

/** A conversation by OpenAI's client for Python. */
export const chatPython = ({ origin, model, messages }) => `from openai import OpenAI

client = OpenAI(base_url="${origin}/v1", api_key="none")
stream = client.chat.completions.create(
    model=${python(model)},
    messages=[${messages.map(({ role, content }) => `\n        {"role": ${python(role)}, "content": ${python(content)}},`).join('')}
    ],
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="")
`;
