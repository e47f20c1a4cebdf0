"""Memory after a burst of large requests: the server gives it back."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
import pytest

import nereid_server
from grpc_requests import message, stub
from http_requests import infer, tensor
from model_files import write_identity
from waiting import eventually

LIMIT_S = 60
MIB = 1 << 20
# Requests with answers of as many bytes each.
REQUESTS, SIZE = 60, 16 * MIB


# Requests that wait together for one execution, each with blocks of a size of which there are many.
WAITING, SMALL = 2000, 64 << 10


def resident(server, of="VmRSS"):
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.split(f"{of}:")[1].split()[0]) << 10


def over_http(server):
    values = np.zeros(SIZE // 4, np.int32)
    header = {
        "inputs": [tensor("INPUT0", "INT32", [values.size], binary_data_size=values.nbytes)],
        "parameters": {"binary_data_output": True},
    }
    text = json.dumps(header).encode()
    answer = infer(server, "same", text + values.tobytes(), {"Inference-Header-Content-Length": str(len(text))})
    assert answer.status == 200 and len(answer.body) > SIZE


def over_grpc(server):
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.grpc_url, options=options) as channel:
        answer = stub(channel).ModelInfer(message(values=np.zeros(SIZE // 4)), timeout=LIMIT_S)
    assert len(answer.raw_output_contents[0]) == SIZE


@pytest.fixture(scope="module")
def bursts(tmp_path_factory):
    """A server for each way to send, after its burst, and its memory before. Both give memory back after seconds, at the same time."""
    repository = tmp_path_factory.mktemp("models")
    write_identity(repository, "same", ["INT32"])
    found = {}
    with ExitStack() as running, ThreadPoolExecutor(REQUESTS // 3) as pool:
        for send in (over_http, over_grpc):
            server = running.enter_context(nereid_server.running(repository))
            for _ in range(50):
                infer(server, "same", {"inputs": [tensor("INPUT0", "INT32", [2], [1, 2])]})
            found[send] = server, resident(server)
            list(pool.map(send, [server] * REQUESTS))
        yield found


@pytest.mark.parametrize("send", [over_http, over_grpc])
def test_memory_of_a_burst_is_given_back(bursts, send):
    server, before = bursts[send]
    assert resident(server, "VmHWM") >= before + SIZE
    assert eventually(lambda: resident(server) <= 1.5 * before, limit_s=30), (before, resident(server))


def test_memory_of_many_requests_that_waited_together_is_given_back(tmp_path):
    write_identity(tmp_path, "alone", ["INT32"], max_batch_size=WAITING)
    write_identity(tmp_path, "same", ["INT32"], max_batch_size=WAITING)
    with (tmp_path / "same" / "config.pbtxt").open("a") as config:
        # None is executed before all are there.
        config.write(f"dynamic_batching {{ max_queue_delay_microseconds: {LIMIT_S * 1_000_000} }}\n")
    with nereid_server.running(tmp_path) as server:
        with grpc.insecure_channel(server.grpc_url) as channel:
            infer = stub(channel).ModelInfer

            def request(model, count):
                result = message(model, np.zeros(count))
                result.inputs[0].shape[:] = [1, count]
                return result

            infer(request("alone", 2), timeout=LIMIT_S)
            # Without the files of the program and its libraries, of which a burst reads more.
            before = resident(server, "RssAnon")
            small = request("same", SMALL // 4)
            calls = [infer.future(small, timeout=LIMIT_S) for _ in range(WAITING)]
            assert all(len(call.result().raw_output_contents[0]) == SMALL for call in calls)
        assert resident(server, "VmHWM") >= before + WAITING * SMALL
        # A thread keeps a few pages of each size of blocks, of half a mebibyte each.
        most = before + WAITING * SMALL // 8
        assert eventually(lambda: resident(server, "RssAnon") <= most, limit_s=30), (before, resident(server, "RssAnon"))
