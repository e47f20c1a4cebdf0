"""Several servers behind a balancer, and load on them."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException

import numpy as np
import tritonclient.grpc

import nereid_server
from http_requests import LIMIT_S, tensor
from model_files import write_identity, write_model
from scrapes import Scrape
from waiting import eventually

BODY = json.dumps({"inputs": [tensor("INPUT0", "INT32", [1], [7])]})
WORKERS = 6
OPENAI_PREFIX = "/openai"
# Paths of OpenAI's chat completions.
CHATS = ("/v1/chat/completions", f"{OPENAI_PREFIX}/v1/chat/completions")
# A model whose sequences are in one server's memory: another one refuses their later requests.
STEPS = """
backend: "identity"
max_batch_size: 64
input { name: "INPUT0" data_type: TYPE_INT32 dims: 1 }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: 1 }
sequence_batching { max_sequence_idle_microseconds: 600000000 oldest { max_candidate_sequences: 256 } }
"""


class Fleet:
    """Servers behind a balancer."""

    def __init__(self, servers, http_port, grpc_port, announce):
        """`announce` names servers to the balancer, by their names."""
        self.servers = servers
        self.http_port = http_port
        self.grpc_url = f"127.0.0.1:{grpc_port}"
        self.client = tritonclient.grpc.InferenceServerClient(self.grpc_url)
        self.announce = announce

    def request(self, method, path, body=None, headers=None):
        """A request to the balancer: its status and body."""
        connection = HTTPConnection("127.0.0.1", self.http_port, timeout=LIMIT_S)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def over_http(self):
        """One inference over HTTP: the error, if there is one."""
        try:
            status, body = self.request("POST", "/v2/models/same/infer", BODY)
            return None if status == 200 else (status, body)
        except (OSError, HTTPException) as error:
            return error

    def over_grpc(self, client=None):
        """One inference over gRPC: the error, if there is one."""
        numbers = tritonclient.grpc.InferInput("INPUT0", [1], "INT32")
        numbers.set_data_from_numpy(np.array([7], np.int32))
        try:
            answer = (client or self.client).infer("same", [numbers], client_timeout=LIMIT_S).as_numpy("OUTPUT0").tolist()
            return None if answer == [7] else answer
        except tritonclient.grpc.InferenceServerException as error:
            return str(error)

    def step(self, sequence, number, last, protocol):
        """A request of a sequence, which says where it belongs: the error, if there is one."""
        headers = {"x-sequence-id": str(sequence)}
        if protocol == "over_http":
            state = {"sequence_id": sequence, "sequence_start": number == 0, "sequence_end": number == last}
            body = {"parameters": state, "inputs": [tensor("INPUT0", "INT32", [1, 1], [number])]}
            status, answer = self.request("POST", "/v2/models/steps/infer", json.dumps(body), headers)
            return None if status == 200 and json.loads(answer)["outputs"][0]["data"] == [number] else answer
        numbers = tritonclient.grpc.InferInput("INPUT0", [1, 1], "INT32")
        numbers.set_data_from_numpy(np.array([[number]], np.int32))
        state = {"sequence_id": sequence, "sequence_start": number == 0, "sequence_end": number == last}
        try:
            self.client.infer("steps", [numbers], headers=headers, client_timeout=LIMIT_S, **state)
        except tritonclient.grpc.InferenceServerException as error:
            return str(error)
        return None

    def answered(self):
        """How many requests each server has answered."""
        counts = (Scrape(server).value("nv_inference_request_success", model="same", version="1") for server in self.servers)
        return np.array(list(counts))

    def shares(self, count):
        """The share of each server in the next `count` requests."""
        before = self.answered()
        assert eventually(lambda: (self.answered() - before).sum() >= count)
        answered = self.answered() - before
        return answered / answered.sum()

    def names(self, headers=None):
        """The names of the servers that answer several requests in a row."""
        try:
            answers = [self.request("GET", "/v2", headers=headers) for _ in range(12)]
            return {json.loads(body)["name"] for _, body in answers}
        except (OSError, HTTPException, ValueError):
            return set()

    def names_over_grpc(self):
        """The same over gRPC."""
        return {self.client.get_server_metadata().name for _ in range(12)}


@contextmanager
def running(folder, balancer, *delays):
    """Starts servers whose models take so many milliseconds, and a balancer before them: a context manager that takes a folder and the
    servers by their names, and gives its ports for HTTP and gRPC and what announces other servers."""
    with ExitStack() as started:
        servers = {}
        for number, delay in enumerate(delays, 1):
            repository = folder / f"models{number}"
            repository.mkdir()
            write_identity(repository, "same", ["INT32"], execute_delay_ms=delay)
            write_model(repository, "steps", STEPS)
            flags = ["--load-reports=always", "--log-requests=true", f"--openai-prefix={OPENAI_PREFIX}", f"--id=server-{number}"]
            how = nereid_server.running(repository, *flags)
            servers[f"server-{number}"] = started.enter_context(how)
        fleet = Fleet([*servers.values()], *started.enter_context(balancer(folder, servers)))
        started.enter_context(fleet.client)
        assert eventually(lambda: len(fleet.names()) == len(delays) and fleet.over_grpc() is None)
        yield fleet


@contextmanager
def load(request, workers=WORKERS):
    """Repeats a request in several threads; gives the errors, which are complete at the end."""
    stop, errors = threading.Event(), []

    def work():
        while not stop.is_set():
            if (error := request()) is not None:
                errors.append(error)

    with ThreadPoolExecutor(workers) as pool:
        running = [pool.submit(work) for _ in range(workers)]
        try:
            yield errors
        finally:
            stop.set()
    for worker in running:
        worker.result()


def chats(fleet):
    """How many requests to OpenAI's chat completions each server has logged."""
    return np.array([server.log.count("/v1/chat/completions") for server in fleet.servers])
