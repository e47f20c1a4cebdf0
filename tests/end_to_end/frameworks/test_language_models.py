"""Language models in GGUF files on llama.cpp: what they write, how requests share an instance, and what does not end the server."""

import json
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

import gguf_models
import llamacpp_package
import nereid_server
from damaged_files import COUNT, damaged
from http_requests import LIMIT_S, engine, request
from scrapes import Scrape
from waiting import eventually

PROMPTS = ["ab", "cdefg", "x", "the quick brown fox", "zzzz"]
ANSWERS = 24


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with small models of random weights."""
    repository = tmp_path_factory.mktemp("language")
    gguf_models.write(repository)
    gguf_models.write(repository, "narrow", gguf_models.parameters(max_sequences=1, context_length=64))
    # The cache holds half of what all sequences together need.
    gguf_models.write(repository, "crowded", gguf_models.parameters(context_length=256, cache_tokens=256))
    embedder = gguf_models.gguf(pooling=gguf_models.MEAN)
    gguf_models.write(repository, "embedder", contents=embedder)
    gguf_models.write(repository, "lengths", gguf_models.parameters(normalize="false"), contents=embedder)
    # A text that fills the context takes minutes.
    gguf_models.write(repository, "endless", gguf_models.parameters(max_sequences=2, context_length=100000))
    with nereid_server.running(repository, llamacpp_package.flag()) as server:
        yield server


def generate(server, text, model="writer", stream=False, **sampling):
    """One answer, with all that a request may ask for."""
    flags = {f"return_{name}": True for name in ("finish_reason", "num_input_tokens", "num_output_tokens")}
    flags |= {"return_logprobs": "logprobs" in sampling, "exclude_input_in_output": True}
    body = {"text_input": text, "stream": stream, "sampling_parameters": json.dumps({"temperature": 0} | sampling)} | flags
    return request(server, "POST", f"/v2/models/{model}/generate" + ("_stream" if stream else ""), json.dumps(body))


def answer(server, text, **how):
    """As `generate`, for requests that succeed."""
    found = generate(server, text, **how)
    assert found.status == 200, found.body
    return found.json


def events(body):
    """The documents of server-sent events."""
    return [json.loads(line[6:]) for line in body.decode().split("\n") if line.startswith("data: ")]


def text_of(pieces):
    """The text of tokens, which may have parts of characters."""
    return b"".join(pieces).decode(errors="replace")


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What llama.cpp itself writes: the pieces by prompt."""
    file = tmp_path_factory.mktemp("oracle") / "model.gguf"
    file.write_bytes(gguf_models.gguf())
    return dict(zip(PROMPTS, llamacpp_package.greedy(file, PROMPTS, ANSWERS), strict=True))


def test_a_file_is_added_with_a_first_request(tmp_path):
    """Parts of a split file are added together."""
    repository, file = tmp_path / "models", tmp_path / "tiny.Q4_0.gguf"
    file.write_bytes(gguf_models.gguf())
    for number in (1, 2):
        (tmp_path / f"split-0000{number}-of-00002.gguf").write_bytes(gguf_models.gguf())

    def add(source, *more):
        command = [nereid_server.binary(), "add", llamacpp_package.flag(), f"--repository={repository}", *more, source]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    done = add(file)
    assert done.returncode == 0, done
    config = (repository / "tiny.Q4_0" / "config.pbtxt").read_text()
    assert 'backend: "llamacpp"' in config and "decoupled: true" in config
    assert add(tmp_path / "split-00002-of-00002.gguf", "--force").returncode == 0
    assert sorted(os.listdir(repository / "split" / "1")) == ["model-00002-of-00002.gguf", "model.gguf"]
    shutil.rmtree(repository / "split")
    with nereid_server.running(repository, llamacpp_package.flag()) as server:
        ask = done.stdout.splitlines()[1].removeprefix("ask it: ").replace("localhost:8000", server.url)
        printed = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, timeout=LIMIT_S, check=True)
        assert json.loads(printed.stdout)["text_output"].startswith("Hello"), printed


def test_model_folder_needs_no_configuration(server):
    config = request(server, "GET", "/v2/models/writer/config").json
    assert (config["backend"], config["platform"], config["max_batch_size"]) == ("llamacpp", "gguf", 0)
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert engine(server, "writer").startswith("llama.cpp 0.")
    parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
    assert parameters == {
        "chat_template": gguf_models.CHAT_TEMPLATE,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "control_tokens": '["<s>","</s>"]',
        "context_length": str(gguf_models.CONTEXT),
    }


def test_text_at_temperature_0_is_llama_cpps_own(server, expected):
    for text in PROMPTS:
        found = answer(server, text, max_tokens=ANSWERS)
        pieces = expected[text]
        assert found["text_output"] == text_of(pieces)
        is_whole = len(pieces) == ANSWERS
        assert found["finish_reason"] == ("length" if is_whole else "stop")
        assert found["num_output_tokens"] == len(pieces) + (not is_whole)


def test_requests_that_execute_together_write_what_they_write_alone(server, expected):
    texts = PROMPTS * 10
    with ThreadPoolExecutor(16) as clients:
        found = list(clients.map(lambda text: answer(server, text, max_tokens=ANSWERS)["text_output"], texts))
    assert found == [text_of(expected[text]) for text in texts]


def test_requests_that_pause_for_room_in_the_cache_write_the_same(server):
    text = "the quick brown fox jumps over the lazy dog"
    alone = answer(server, text, max_tokens=48, ignore_eos=True)
    assert 8 * (alone["num_input_tokens"] + 48) > 2 * 256
    with ThreadPoolExecutor(8) as clients:
        how = {"model": "crowded", "max_tokens": 48, "ignore_eos": True}
        # Different salts, lest the requests share their prompt in the cache.
        found = list(clients.map(lambda salt: answer(server, text, cache_salt=str(salt), **how), range(16)))
    assert {one["text_output"] for one in found} == {alone["text_output"]}


def test_cached_prefix_makes_no_difference(server):
    text = "the quick brown fox jumps over the lazy dog " * 3
    alone = answer(server, text + "ab", max_tokens=ANSWERS)["text_output"]
    for prefix in (text, text + "a", text + "xy", text + "ab"):
        answer(server, prefix, max_tokens=3)
        assert answer(server, text + "ab", max_tokens=ANSWERS)["text_output"] == alone


def test_stream_has_the_same_text_in_pieces(server, expected):
    for text in PROMPTS:
        parts = events(generate(server, text, stream=True, max_tokens=ANSWERS).body)
        assert "".join(part["text_output"] for part in parts) == text_of(expected[text])
        assert {part["finish_reason"] for part in parts[:-1]} == {"None"}
        whole = answer(server, text, max_tokens=ANSWERS)
        assert parts[-1]["finish_reason"] == whole["finish_reason"]
        assert sum(part["num_output_tokens"] for part in parts) == whole["num_output_tokens"]
        assert len(parts) > 5


def test_grpc_stream_ends_with_a_final_response(server, expected):
    text = PROMPTS[0]
    tensors = {"text_input": ("BYTES", [text.encode()]), "stream": ("BOOL", [True])}
    sampling = json.dumps({"temperature": 0, "max_tokens": ANSWERS})
    tensors["sampling_parameters"] = ("BYTES", [sampling.encode()])
    inputs = []
    for name, (datatype, values) in tensors.items():
        given = tritonclient.grpc.InferInput(name, [1], datatype)
        given.set_data_from_numpy(np.array(values, bool if datatype == "BOOL" else object))
        inputs.append(given)
    results: queue.Queue = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: results.put((result, error)))
        client.async_stream_infer("writer", inputs, enable_empty_final_response=True)
        found = b""
        while True:
            result, error = results.get(timeout=LIMIT_S)
            assert error is None
            if (output := result.as_numpy("text_output")) is not None:
                found += output[0]
            if result.get_response().parameters["triton_final_response"].bool_param:
                break
    assert found.decode() == text_of(expected[text])


def test_input_is_repeated_as_by_the_vllm_backend(server, expected):
    body = {"text_input": "ab", "sampling_parameters": json.dumps({"temperature": 0, "max_tokens": ANSWERS})}
    found = request(server, "POST", "/v2/models/writer/generate", json.dumps(body)).json
    assert found["text_output"] == "ab" + text_of(expected["ab"])
    assert set(found) == {"model_name", "model_version", "text_output"}
    # Without the input, the request's parameters apply.
    body = {"text_input": "ab", "temperature": 0, "max_tokens": ANSWERS, "exclude_input_in_output": True}
    assert request(server, "POST", "/v2/models/writer/generate", json.dumps(body)).json["text_output"] == text_of(expected["ab"])


def test_sampling_parameters_apply(server, expected):
    whole = text_of(expected["ab"])
    stop = whole[6:8]
    found = answer(server, "ab", max_tokens=ANSWERS, stop=[stop])
    assert (found["text_output"], found["finish_reason"]) == (whole[: whole.index(stop)], "stop")
    # A token that must not follow is replaced by another from the first place on.
    logprobs = json.loads(answer(server, "ab", max_tokens=1, logprobs=3)["logprobs"])
    first, *others = logprobs[0].items()
    assert first[1]["rank"] == 1 and [other["rank"] for _, other in others] == [2, 3]
    assert first[1]["logprob"] > others[0][1]["logprob"]
    biased = json.loads(answer(server, "ab", max_tokens=1, logprobs=0, logit_bias={first[0]: -100})["logprobs"])
    assert list(biased[0]) == [others[0][0]]
    drawn = [answer(server, "ab", max_tokens=8, temperature=5, seed=seed)["text_output"] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("text", "sampling", "message"),
    [
        ("z" * 600, {}, "but the context holds 512 tokens"),
        ("a", {"temperature": -1}, "sampling parameter 'temperature' is -1"),
        ("a", {"n": 2}, "does not support sampling parameter 'n'"),
        ("a", {"structured_outputs": {"structural_tag": "{}"}}, "does not support structured output by 'structural_tag'"),
        ("a", {"warmth": 1}, "unknown sampling parameter 'warmth'"),
        ("a" * 2_000_000, {}, "but the context holds 512 tokens"),
    ],
    ids=["long", "range", "several", "structured", "unknown", "huge"],
)
def test_requests_that_cannot_be_executed_are_refused_with_the_reason(server, text, sampling, message):
    for stream in (False, True):
        found = generate(server, text, stream=stream, **sampling)
        assert message in found.body.decode(), found


def test_context_ends_a_text_without_a_limit(server):
    found = answer(server, "ab", model="narrow", max_tokens=None, ignore_eos=True)
    assert (found["finish_reason"], found["num_input_tokens"] + found["num_output_tokens"]) == ("length", 64)


def test_clients_that_leave_free_their_places(server):
    sampling = {"temperature": 0, "ignore_eos": True, "max_tokens": None}
    body = json.dumps({"text_input": "ab", "stream": True, "sampling_parameters": json.dumps(sampling)})
    connections = [HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S) for _ in range(2)]
    for connection in connections:
        connection.request("POST", "/v2/models/endless/generate_stream", body)
        # Both sequences are in use by texts that have begun.
        assert connection.getresponse().readline().startswith(b"data: ")
    waiting = ThreadPoolExecutor(1).submit(answer, server, "x", model="endless", max_tokens=3)
    labels = {"model": "endless", "version": "1"}
    assert eventually(lambda: Scrape(server).value("nv_inference_pending_request_count", **labels) == 1)
    for connection in connections:
        connection.sock.shutdown(socket.SHUT_RDWR)
    assert waiting.result(LIMIT_S)["num_output_tokens"] == 3
    # Requests that have started count as failures of their backend, also if they were cancelled.
    labels["reason"] = "BACKEND"
    assert eventually(lambda: Scrape(server).value("nv_inference_request_failure", **labels) == 2)


def embed(server, texts, model="embedder"):
    """The vectors of texts, by one request."""
    given = tritonclient.http.InferInput("text_input", [len(texts), 1], "BYTES")
    given.set_data_from_numpy(np.array([[text.encode()] for text in texts], object))
    with tritonclient.http.InferenceServerClient(server.url) as client:
        return client.infer(model, [given]).as_numpy("embedding")


def test_embeddings_are_llama_cpps_own(server, tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(gguf_models.gguf(pooling=gguf_models.MEAN))
    own = np.array(llamacpp_package.embeddings(file, PROMPTS, gguf_models.WIDTH))
    np.testing.assert_allclose(embed(server, PROMPTS, "lengths"), own, rtol=1e-3, atol=1e-4)
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    np.testing.assert_allclose(embed(server, PROMPTS), own, rtol=1e-3, atol=1e-4)
    with ThreadPoolExecutor(8) as clients:
        alone = list(clients.map(lambda text: embed(server, [text])[0], PROMPTS * 6))
    # The library computes batches of some sizes by other code, whose results differ more.
    np.testing.assert_allclose(np.array(alone), np.tile(own, (6, 1)), rtol=1e-3, atol=1e-3)


def test_embedding_model_completes_its_configuration(server):
    config = request(server, "GET", "/v2/models/embedder/config").json
    assert (config["max_batch_size"], "dynamic_batching" in config) == (8, True)
    tensors = [(it["name"], it["data_type"], it["dims"]) for it in config["input"] + config["output"]]
    assert tensors == [("text_input", "TYPE_STRING", [1]), ("embedding", "TYPE_FP32", [gguf_models.WIDTH])]
    # A text that is too long fails alone.
    found = request(server, "POST", "/v2/models/embedder/generate", json.dumps({"text_input": "z" * 600}))
    assert "tokens, but the context holds 512" in found.json["error"]
    assert len(request(server, "POST", "/v2/models/embedder/generate", json.dumps({"text_input": "z"})).json["embedding"]) == 64


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("text", [*PROMPTS, "", "Grüße, 世界 🙂", "a\n\tb  c"])
def test_tokens_make_the_text_again(server, text, special):
    body = {"model": "writer", "prompt": text, "add_special_tokens": special, "return_token_strs": True}
    found = request(server, "POST", "/tokenize", json.dumps(body)).json
    tokens = found["tokens"]
    names = [name for name, _, _ in gguf_models.vocabulary()]
    assert found["token_strs"] == [names[token] for token in tokens]
    assert (found["count"], found["max_model_len"]) == (len(tokens), gguf_models.CONTEXT)
    assert (tokens[:1] == [1]) == special
    if text:
        assert answer(server, text, max_tokens=1)["num_input_tokens"] == len(tokens) + (not special)
    shown = request(server, "POST", "/detokenize", json.dumps({"model": "writer", "tokens": tokens})).json["prompt"]
    assert shown.removeprefix("<s>").removeprefix(" ") == text


def test_prompts_of_tokens_are_continued_as_their_texts(server, expected):
    def post(path, **body):
        sampling = {} if path == "/tokenize" else {"temperature": 0}
        return request(server, "POST", path, json.dumps({"model": "writer", **sampling, **body}))

    prompts = [post("/tokenize", prompt=text).json["tokens"] for text in PROMPTS]
    written = [text_of(expected[text]) for text in PROMPTS]
    for echo in (False, True):
        shown = [f"<s> {text}{after}" if echo else after for text, after in zip(PROMPTS, written, strict=True)]
        alone = post("/v1/completions", prompt=prompts[0], max_tokens=ANSWERS, echo=echo).json
        assert [choice["text"] for choice in alone["choices"]] == shown[:1]
        found = post("/v1/completions", prompt=prompts, n=2, max_tokens=ANSWERS, echo=echo).json
        assert [choice["text"] for choice in found["choices"]] == [text for text in shown for _ in range(2)]
        assert found["usage"]["prompt_tokens"] == sum(map(len, prompts))
        stream = post("/v1/completions", prompt=prompts[1], max_tokens=ANSWERS, echo=echo, stream=True)
        parts = [json.loads(line[6:]) for line in stream.body.decode().split("\n") if line.startswith("data: {")]
        assert "".join(part["choices"][0]["text"] for part in parts) == shown[1]
    body = {"text_input": "", "tokens": prompts[0], "temperature": 0, "max_tokens": ANSWERS, "exclude_input_in_output": True}
    assert request(server, "POST", "/v2/models/writer/generate", json.dumps(body)).json["text_output"] == written[0]
    for prompt, message in [
        ([5, 1_000_000], "input 'tokens' has 1000000"),
        ([-1], "input 'tokens' has -1"),
        ([5] * 600, "the prompt has 600 tokens, but the context holds 512"),
        ([[5], []], "prompt must be non-empty"),
    ]:
        found = post("/v1/completions", prompt=prompt)
        assert (found.status, message in found.json["error"]["message"]) == (400, True), found.body


@pytest.mark.parametrize("tokens", [[1_000_000], [-1], [0, 2**31]], ids=["large", "negative", "larger"])
def test_unknown_tokens_are_refused(server, tokens):
    found = request(server, "POST", "/detokenize", json.dumps({"model": "writer", "tokens": tokens}))
    assert (found.status, "'tokens'" in found.json["error"]["message"]) == (400, True)


def test_metrics_have_the_names_that_gateways_know(repository, serve):
    gguf_models.write(repository, config=gguf_models.parameters(max_sequences=2, cache_tokens=12000, context_length=10000))
    server = serve(llamacpp_package.flag(), "--load-reports=always")
    model = {"model": "writer", "version": "1"}

    def vllm(name, **more):
        labels = {"model_name": "writer", "engine": "writer_0", **more}
        return Scrape(server).value(f"vllm:{name}", **labels)

    def requests_of(kind):
        return Scrape(server).value("nv_trt_llm_request_metrics", request_type=kind, **model)

    assert (requests_of("max"), requests_of("waiting"), vllm("num_requests_running")) == (2, 0, 0)
    tokens = answer(server, "the quick brown fox", max_tokens=8, ignore_eos=True)["num_input_tokens"]
    assert (vllm("prompt_tokens_total"), vllm("generation_tokens_total")) == (tokens, 8)
    assert vllm("request_success_total", finished_reason="length") == 1
    for name in ("time_to_first_token_seconds", "time_per_output_token_seconds", "e2e_request_latency_seconds"):
        assert vllm(f"{name}_count") == 1
        assert vllm(f"{name}_sum") > 0
    general = {"gen_ai_operation_name": "text_completion", "gen_ai_provider_name": "nereid", "gen_ai_request_model": "writer"}
    assert Scrape(server).value("gen_ai_server_request_duration_seconds_count", **general) == 1
    answer(server, "the quick brown fox", max_tokens=1)
    assert vllm("prefix_cache_hits_total") == tokens - 1
    # A conversation that is continued by its identifier has its beginning in the cache.
    body = {"model": "writer", "input": "zyxwvutsrqponmlkji" * 3, "max_output_tokens": 2, "temperature": 0}
    first = request(server, "POST", "/v1/responses", json.dumps(body)).json
    hits = vllm("prefix_cache_hits_total")
    body |= {"previous_response_id": first["id"], "input": "ab"}
    assert request(server, "POST", "/v1/responses", json.dumps(body)).status == 200
    assert vllm("prefix_cache_hits_total") >= hits + first["usage"]["input_tokens"] - 2
    sampling = {"temperature": 0, "ignore_eos": True, "max_tokens": None}
    body = json.dumps({"text_input": "ab", "stream": True, "sampling_parameters": json.dumps(sampling)})
    connections = [HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S) for _ in range(3)]
    for connection in connections:
        connection.request("POST", "/v2/models/writer/generate_stream", body)
    # Two are executed; the third one waits in the server's queue.
    assert eventually(lambda: (requests_of("scheduled"), requests_of("waiting"), vllm("num_requests_waiting")) == (2, 1, 1))
    assert eventually(lambda: 0 < vllm("kv_cache_usage_perc") <= 1)
    blocks = {
        kind: Scrape(server).value("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type=kind, **model)
        for kind in ("max", "tokens_per")
    }
    assert blocks == {"max": 12000, "tokens_per": 1}
    for connection in connections[1:]:
        connection.sock.shutdown(socket.SHUT_RDWR)
    body = json.dumps({"text_input": "ab", "max_tokens": 1})
    found = request(server, "POST", "/v2/models/writer/generate", body, {"endpoint-load-metrics-format": "text"})
    report = found.headers["endpoint-load-metrics"]
    assert "named_metrics.max_token_capacity=12000" in report and "named_metrics.kv_cache_utilization=" in report
    connections[0].sock.shutdown(socket.SHUT_RDWR)
    assert eventually(
        lambda: (vllm("num_requests_running"), vllm("num_requests_waiting"), vllm("kv_cache_usage_perc")) == (0, 0, 0)
    )


def workers(server):
    """The processes of a server's models."""
    return [int(pid) for pid in Path(f"/proc/{server.pid}/task/").glob("*/children") for pid in pid.read_text().split()]


@pytest.mark.parametrize(
    ("fault", "end"),
    [
        (signal.SIGKILL, "was killed by signal 9"),
        (signal.SIGSTOP, "was killed, because it made no progress with its requests in time"),
    ],
    ids=["dies", "hangs"],
)
def test_end_of_the_process_fails_its_requests_and_no_others(repository, serve, fault, end):
    gguf_models.write(repository, config=gguf_models.parameters(context_length=10000))
    server = serve(llamacpp_package.flag(), "--backend-config=llamacpp,execute-timeout-seconds=2")
    whole = answer(server, "ab", max_tokens=8)["text_output"]
    sampling = {"temperature": 0, "ignore_eos": True, "max_tokens": None}
    body = json.dumps({"text_input": "ab", "stream": True, "sampling_parameters": json.dumps(sampling)})
    connections = [HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S) for _ in range(4)]
    responses = []
    for connection in connections:
        connection.request("POST", "/v2/models/writer/generate_stream", body)
        responses.append(connection.getresponse())
        assert responses[-1].readline().startswith(b"data: ")
    (worker,) = workers(server)
    os.kill(worker, fault)
    for response in responses:
        assert end in events(response.read())[-1]["error"]
    assert answer(server, "ab", max_tokens=8)["text_output"] == whole
    assert Scrape(server).value("nereid_worker_restarts_total", model="writer", version="1") == 1


def test_model_without_requests_uses_no_processor(server):
    answer(server, "the", max_tokens=3)

    def ticks(pid):
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))

    used = {pid: ticks(pid) for pid in workers(server)}
    assert used
    # Each sleeps until its next request: a second of another one's work, in which it would show.
    subprocess.run(["sleep", "1"], check=True)
    assert all(ticks(pid) - before <= 10 for pid, before in used.items())


def test_models_together_have_no_more_threads_than_there_are_processors(repository, serve, expected):
    processors = len(os.sched_getaffinity(0))
    for name in ("one", "two", "three"):
        gguf_models.write(repository, name, gguf_models.parameters(threads=processors))
    server = serve(llamacpp_package.flag())
    if processors > 1:
        assert re.search(r"has 1 thread\(s\) for each of its 1 instance\(s\) instead of", server.log), server.log
    for name in ("one", "two", "three"):
        assert answer(server, "ab", model=name, max_tokens=ANSWERS)["text_output"] == text_of(expected["ab"])


@pytest.mark.parametrize(
    "settings", [["isolation=none"], ["sandbox=on"], ["sandbox=required"], ["isolation=process", "sandbox=off"]], ids="-".join
)
def test_every_isolation_writes_the_same(repository, serve, expected, settings):
    gguf_models.write(repository)
    flags = [f"--backend-config=llamacpp,{setting}" for setting in settings]
    folder = llamacpp_package.flag().rpartition("=")[2]
    server = serve(llamacpp_package.flag(), f"--backend-config=llamacpp,sandbox-read={folder}", *flags)
    for text in PROMPTS:
        assert answer(server, text, max_tokens=ANSWERS)["text_output"] == text_of(expected[text])
    assert len(workers(server)) == (0 if settings == ["isolation=none"] else 1)


def test_damaged_files_do_not_bring_the_server_down(repository, serve):
    source = gguf_models.write(repository).read_bytes()
    head = source.index(b"blk.0.attn_q.weight") + 400
    for index, copy in enumerate(damaged(source[:head], 7, COUNT)):
        contents = copy if index % 4 == 3 else copy + source[head:]
        gguf_models.write(repository, f"damaged{index}", contents=contents)
    gguf_models.write(repository, "empty", contents=b"GGUF")
    gguf_models.write(repository, "other", contents=b"\x08\x07onnx")
    server = serve(llamacpp_package.flag(), "--exit-on-error=false", ready=False, limit_s=60 + 5 * COUNT)
    refused = [line for line in server.complaints if "failed to load 'damaged" in line]
    assert len(refused) > COUNT / 4, server.log
    assert "1/model.gguf is not a GGUF file" in server.log
    assert not re.search(r"(model '\w+'): \1", server.log), "an error names its model twice"
    for index in range(COUNT):
        if request(server, "GET", f"/v2/models/damaged{index}/ready").status == 200:
            assert generate(server, "ab", model=f"damaged{index}", max_tokens=4).status in (200, 400, 500, 503)
    assert answer(server, "ab", max_tokens=4)["num_output_tokens"] == 4


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("max_batch_size: 2", "max_batch_size is 2, but must be 0"),
        (gguf_models.parameters(threads="many"), "parameter 'threads' is 'many'"),
        ('input { name: "prompt" data_type: TYPE_STRING dims: [ 1 ] }', "has no input of this name"),
    ],
    ids=["batches", "parameter", "input"],
)
def test_configurations_that_cannot_be_served_are_refused_with_the_reason(repository, serve, config, message):
    gguf_models.write(repository, config=config)
    server = serve(llamacpp_package.flag(), "--exit-on-error=false", ready=False)
    assert any(message in line for line in server.complaints), server.log


def test_another_library_is_refused_with_what_to_install(repository, serve):
    gguf_models.write(repository)
    flags = ["--backend-config=llamacpp,library=libc.so.6", "--exit-on-error=false"]
    server = serve(*flags, ready=False)
    assert any("npm install -g @node-llama-cpp/linux-x64@3.22.1" in line for line in server.complaints), server.log


def test_adapters_write_as_in_llama_cpp(repository, serve, expected):
    """With requests of several adapters at a time, and prompts that others have left in the cache."""
    file = gguf_models.write(repository, config=gguf_models.parameters(speculative_tokens=3))
    adapters = file.parent / "adapters"
    adapters.mkdir()
    texts = {"writer": [text_of(expected[text]) for text in PROMPTS]}
    for seed, name in enumerate(("one", "two")):
        path = adapters / f"{name}.gguf"
        path.write_bytes(gguf_models.adapter(seed))
        texts[f"writer:{name}"] = [text_of(pieces) for pieces in llamacpp_package.greedy(file, PROMPTS, ANSWERS, path)]
    assert len({tuple(written) for written in texts.values()}) == 3
    server = serve(llamacpp_package.flag())
    models = [model["id"] for model in request(server, "GET", "/v1/models").json["data"]]
    assert models == ["writer", "writer:one", "writer:two"]

    def complete(case):
        model, place = case
        body = {"model": model, "prompt": PROMPTS[place], "temperature": 0, "max_tokens": ANSWERS}
        found = request(server, "POST", "/v1/completions", json.dumps(body))
        assert found.status == 200, found.body
        return found.json["choices"][0]["text"]

    cases = [(model, place) for place in range(len(PROMPTS)) for model in texts] * 2
    with ThreadPoolExecutor(6) as clients:
        found = list(clients.map(complete, cases))
    assert found == [texts[model][place] for model, place in cases]
    found = generate(server, "a", lora_name="three")
    assert (found.status, found.json["error"]) == (400, "the model has no adapter 'three' (available: one, two)")


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (b"GGUF", "llama.cpp cannot load adapter"),
        (gguf_models.gguf(), "llama.cpp cannot load adapter"),
        (gguf_models.adapter(1, trigger=[5]), "it applies after certain tokens only"),
    ],
    ids=["damaged", "model", "triggered"],
)
def test_adapters_that_cannot_be_used_are_refused(repository, serve, adapter, message):
    folder = gguf_models.write(repository).parent / "adapters"
    folder.mkdir()
    (folder / "one.gguf").write_bytes(adapter)
    server = serve(llamacpp_package.flag(), "--exit-on-error=false", ready=False)
    assert any(message in line for line in server.complaints), server.log


SPECULATION: dict[str, dict] = {
    "lookup": {"speculative_tokens": 6},
    "draft": {"draft_model": "draft.gguf", "speculative_tokens": 5, "draft_min_probability": 0},
}


def accepted(server, model):
    """The tokens that were guessed, and those among them that the model chose."""
    labels = {"model_name": model, "engine": f"{model}_0"}
    scrape = Scrape(server)
    return [scrape.value(f"vllm:spec_decode_num_{name}_tokens_total", **labels) for name in ("draft", "accepted")]


def test_guesses_change_no_output(repository, serve):
    gguf_models.write(repository, "plain")
    for name, parameters in SPECULATION.items():
        gguf_models.write(repository, name, gguf_models.parameters(**parameters))
    (repository / "draft/1/draft.gguf").write_bytes(gguf_models.gguf())
    gguf_models.write(repository, "wrong", gguf_models.parameters(**SPECULATION["draft"]))
    (repository / "wrong/1/draft.gguf").write_bytes(gguf_models.gguf(seed=2))
    server = serve(llamacpp_package.flag())
    rng = np.random.default_rng(5)
    cases = []
    for number in range(24):
        text = "".join(rng.choice(list("abc "), rng.integers(1, 40)))
        how = {"max_tokens": int(rng.integers(1, 40)), "logprobs": 2}
        cases.append((text, how | ({"stop": ["a"]} if number % 3 == 2 else {})))

    def all_of(model, **more):
        found = [answer(server, text, model=model, **how, **more) for text, how in cases]
        return [(json.loads(one["logprobs"]), one["finish_reason"]) for one in found]

    expected = all_of("plain")

    def assert_same(found):
        """Where two tokens are equally likely, the last digits decide, and these depend on the size of a batch."""
        ties = 0
        for (own, end), (plain, plain_end) in zip(found, expected, strict=True):
            own_tokens, tokens = ([next(iter(token)) for token in tokens] for tokens in (own, plain))
            differing = [place for place, (one, other) in enumerate(zip(own_tokens, tokens, strict=False)) if one != other]
            if differing:
                likely, next_likely = (choice["logprob"] for choice in plain[differing[0]].values())
                assert likely - next_likely < 0.02
                ties += 1
            else:
                assert (own_tokens, end) == (tokens, plain_end)
        assert ties < len(cases) / 4

    for model in ("lookup", "draft", "wrong"):
        assert_same(all_of(model))
    guessed, right = accepted(server, "draft")
    assert 0 < guessed / 2 < right
    guessed, right = accepted(server, "wrong")
    assert right < guessed / 10
    found = generate(server, "a", model="lookup", speculative_tokens=7)
    assert "'speculative_tokens' is 7, but must be at most 6" in found.json["error"]


def test_guesses_change_no_output_of_a_real_model(repository, serve):
    for name, parameters in SPECULATION.items():
        (repository / name / "1").mkdir(parents=True)
        parameters = gguf_models.parameters(max_sequences=2, context_length=512, **parameters)
        (repository / name / "config.pbtxt").write_text(parameters)
        (repository / name / "1/model.gguf").symlink_to(llamacpp_package.model())
    (repository / "draft/1/draft.gguf").symlink_to(llamacpp_package.model())
    server = serve(llamacpp_package.flag())
    texts = ("one two three four five one two three", "1, 2, 3, 4, 5, 6,")

    def write(name, **more):
        return [answer(server, text, model=name, max_tokens=14, **more)["text_output"] for text in texts]

    plain = write("lookup", speculative_tokens=0)
    assert accepted(server, "lookup") == [0, 0]
    assert [write(name) for name in SPECULATION] == [plain, plain]
    counts = {name: accepted(server, name) for name in SPECULATION}
    assert all(right >= 5 for _, right in counts.values()), counts


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (None, "draft.gguf"),
        (b"GGUF", "llama.cpp cannot load"),
        (gguf_models.gguf(pooling=gguf_models.MEAN), "cannot be the draft model: it does not generate text"),
        (
            gguf_models.gguf().replace(b"\2" + bytes(7) + b"ca", b"\2" + bytes(7) + b"cA"),
            "cannot be the draft model: token 338 differs",
        ),
    ],
    ids=["missing", "damaged", "embeds", "vocabulary"],
)
def test_draft_models_that_do_not_fit_are_refused(repository, serve, draft, message):
    gguf_models.write(repository, config=gguf_models.parameters(draft_model="draft.gguf"))
    if draft is not None:
        (repository / "writer/1/draft.gguf").write_bytes(draft)
    server = serve(llamacpp_package.flag(), "--exit-on-error=false", ready=False)
    assert any(message in line for line in server.complaints), server.log


def test_real_model_answers_as_llama_cpp_does(repository, serve):
    """With the chat template of the model, as a face would render it."""
    (repository / "chat/1").mkdir(parents=True)
    (repository / "chat/1/model.gguf").symlink_to(llamacpp_package.model())
    server = serve(llamacpp_package.flag())
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    (pieces,) = llamacpp_package.greedy(llamacpp_package.model(), [prompt], 12)
    found = answer(server, prompt, model="chat", max_tokens=12)
    assert found["text_output"] == text_of(pieces) == "The capital of France is Paris."
    assert found["finish_reason"] == "stop"
    config = request(server, "GET", "/v2/models/chat/config").json
    assert "<|im_start|>" in config["parameters"]["chat_template"]["string_value"]
