"""Binds functions with pytriton, asks for them with its clients, and prints what they answer as one line of JSON. The
arguments are the ports of HTTP, gRPC and metrics.

Runs in the environment that pytriton_package.py makes, which has other packages than the tests.
"""

import asyncio
import json
import sys
import urllib.error
import urllib.request

import numpy as np
from pytriton.client import AsyncioModelClient, DecoupledModelClient, FuturesModelClient, ModelClient
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig

HTTP, GRPC, METRICS = map(int, sys.argv[1:])
URLS = {"http": f"http://127.0.0.1:{HTTP}", "grpc": f"grpc://127.0.0.1:{GRPC}"}
KEY = "secret"
batches: list[int] = []


@batch
def add(a, b):
    batches.append(len(a))
    return {"sum": a + b, "difference": a - b}


@batch
def upper(text):
    return {"text": np.char.encode(np.char.upper(np.char.decode(text.astype("S"), "utf-8")), "utf-8")}


@batch
def fail(a):
    raise ValueError("no such digit")


def squares(requests):
    for i in range(int(requests[0].data["count"].item())):
        yield [{"square": np.array([[i * i]], dtype=np.int32)}]


def tensor(name, dtype, *shape):
    return Tensor(name=name, dtype=dtype, shape=shape)


def bind(triton):
    numbers = [tensor("a", np.float32, -1), tensor("b", np.float32, -1)]
    results = [tensor("sum", np.float32, -1), tensor("difference", np.float32, -1)]
    delayed = ModelConfig(max_batch_size=16, batcher=DynamicBatcher(max_queue_delay_microseconds=100_000))
    triton.bind("add", add, numbers, results, config=delayed)
    triton.bind("upper", upper, [tensor("text", bytes, 1)], [tensor("text", bytes, 1)])
    triton.bind("fail", fail, [tensor("a", np.float32, 1)], [tensor("b", np.float32, 1)])
    counted = ModelConfig(decoupled=True)
    triton.bind("squares", squares, [tensor("count", np.int32, 1)], [tensor("square", np.int32, 1)], config=counted)


def lists(answer):
    return {name: value.tolist() for name, value in answer.items()}


def error_of(url, model, *inputs, **options):
    try:
        with ModelClient(url, model, access_token=KEY, **options) as client:
            return ["none", str(client.infer_sample(*inputs))]
    except Exception as error:
        return [type(error).__name__, str(error)]


async def ask_at_once(url, rows):
    async with AsyncioModelClient(url, "add") as client:
        return [answer["sum"].tolist() for answer in await asyncio.gather(*(client.infer_sample(*row) for row in rows))]


def ask(url):
    a, ones = np.arange(3, dtype=np.float32), np.ones(3, dtype=np.float32)
    with ModelClient(url, "add", access_token=KEY) as client:
        sample = lists(client.infer_sample(a, a * 10))
        batched = lists(client.infer_batch(np.stack([a, ones]), np.stack([a * 10, ones * 10])))
        known = client.model_config
    with ModelClient(url, "upper", access_token=KEY) as client:
        words = [[b"hello"], ["grün".encode()]]
        text = client.infer_batch(np.array(words, dtype=object))["text"]
    return {
        "sample": sample,
        "batch": batched,
        "config": {
            "name": known.model_name,
            "version": known.model_version,
            "max_batch_size": known.max_batch_size,
        },
        "text": [word.decode() for word in text.ravel()],
        "error": error_of(url, "fail", np.zeros(1, np.float32)),
        "unknown": error_of(url, "unknown", a, init_timeout_s=1, lazy_init=False),
        "asyncio": asyncio.run(ask_at_once(url, [(ones * i, ones * 10 * i) for i in range(10)])),
    }


def main():
    config = TritonConfig(http_port=HTTP, grpc_port=GRPC, metrics_port=METRICS, http_address="127.0.0.1")
    config.grpc_address = config.metrics_address = "127.0.0.1"
    # Options that are seldom used.
    config.cache_config = ["local,size=1048576"]
    config.buffer_manager_thread_count = 2
    config.allow_sagemaker = False
    config.allow_vertex_ai = False
    config.metrics_config = ["summary_latencies=true"]
    ones = np.ones(3, dtype=np.float32)
    report = {}
    security = TritonSecurityConfig(access_token=KEY)
    with Triton(config=config, security_config=security) as triton:
        bind(triton)
        triton.run()
        server = triton._triton_server
        for protocol, url in URLS.items():
            report[protocol] = ask(url)
        batches.clear()
        with FuturesModelClient(URLS["http"], "add", max_workers=16) as client:
            answers = [client.infer_sample(ones * i, ones * 10 * i) for i in range(40)]
            report["futures"] = [answer.result()["sum"].tolist() for answer in answers]
        report["batches"] = list(batches)
        with DecoupledModelClient(URLS["grpc"], "squares") as client:
            report["decoupled"] = [int(answer["square"].item()) for answer in client.infer_sample(np.array([5], np.int32))]
        load = urllib.request.Request(URLS["http"] + "/v2/repository/models/add/unload", data=b"{}")
        try:
            report["without key"] = urllib.request.urlopen(load).status
        except urllib.error.HTTPError as error:
            report["without key"] = "refused" if error.code == 403 else error.code
        alive = server.is_alive()
    report["alive"] = [alive, server.is_alive()]
    report["log"] = server.logs()
    print(json.dumps(report))


main()
