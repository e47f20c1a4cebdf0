"""Clients of a fleet of models that ask over every protocol, may be in a hurry or leave, and judge each answer and each error.

Knows which answers are right and which errors may be. Knows nothing of what is done to the models and the server.
"""

import asyncio
import itertools
import json
import random
import re
import threading
import time
from collections import Counter
from http.client import HTTPConnection, HTTPException

import aiohttp
import grpc
import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from model_kinds import EDITION

#: A request without an end by then is lost.
LOST_S = 100
#: Errors of this time after a process was killed may be its end.
KILLED_S = 60
_HTTP_CODES = {"400": "invalid", "404": "not found", "500": "internal", "503": "unavailable"}
_GRPC_CODES = {
    "UNAVAILABLE": "unavailable",
    "NOT_FOUND": "not found",
    "INVALID_ARGUMENT": "invalid",
    "INTERNAL": "internal",
    "DEADLINE_EXCEEDED": "deadline",
    "CANCELLED": "cancelled",
}
#: What gRPC's clients say when there is no connection.
_NO_CONNECTION = re.compile(r"connect|Socket closed|reset|recvmsg|GOAWAY|Broken pipe|TCP stream|handshak|Transport", re.IGNORECASE)
PROCESS_ENDED = re.compile(r"process .*(killed|ended|exited|runs again)|signal 9")
_LOCAL = [("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)]


class Failure(Exception):
    """An error of a request: its kind, and the text."""

    def __init__(self, kind, text):
        super().__init__(text)
        self.kind = kind


class Ask:
    """One request: its model, what it is sent, and how long it may take."""

    def __init__(self, model, generator):
        self.model, self.chance = model, generator.random()
        self.question = model.kind.question(np.random.default_rng(generator.getrandbits(32)))
        #: One of twenty is in a hurry, and one of twenty leaves, if its client can.
        self.hurry = generator.uniform(0.001, 0.5) if self.chance < 0.05 else None
        self.leaves = generator.uniform(0.001, 0.3) if 0.05 <= self.chance < 0.1 else None
        self.version = ""
        if model.role == "released" and generator.random() < 0.2:
            self.version = str(generator.choice((1, 2)))
        self.user = str(generator.randrange(50))

    def inputs(self, make):
        """The inputs, of a protocol's class."""
        for name, values in self.question.inputs.items():
            given = make(name, list(values.shape), np_to_triton_dtype(values.dtype))
            given.set_data_from_numpy(values)
            yield given


class Clients:
    """Many clients of the server that `current` has. Each sends its next request when it has an answer."""

    def __init__(self, fleet, current, seed, each):
        """With that many clients of each protocol."""
        self._fleet, self._current, self._each = fleet, current, each
        self._seeds = itertools.count(seed * 1000)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        #: How many requests ended how, by protocol and outcome.
        self.counts: Counter = Counter()
        #: What must not be, with some of the cases.
        self.wrong: list = []
        #: The texts of answers that a model is not available.
        self.unavailable: Counter = Counter()
        self._floors: dict = {}
        self._users: dict = {}
        self.answered: Counter = Counter()
        names = [model.name for model in fleet.models]
        random.Random(seed).shuffle(names)
        models = {model.name: model for model in fleet.models}
        self._models = [models[name] for name in names]
        self._weights = [1 / (rank + 1) ** 0.9 for rank in range(len(names))]

    def start(self):
        self._stop.clear()
        kinds = [self._http, self._grpc] * self._each
        self._threads = [threading.Thread(target=self._loop, args=(kind,)) for kind in kinds]
        self._threads.append(threading.Thread(target=lambda: asyncio.run(self._all_aio())))
        for thread in self._threads:
            thread.start()

    def stop(self):
        """Ends all clients, which get their answers first."""
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * LOST_S)
            assert not thread.is_alive(), "a client waits for an answer for ever"

    # One request by each protocol: an answer's version and output, or a failure.

    def _http(self, server, ask, kept):
        connection = kept.setdefault("connection", HTTPConnection("127.0.0.1", server.port, timeout=LOST_S))
        inputs = []
        for name, values in ask.question.inputs.items():
            flat = values.reshape(-1).tolist()
            inputs.append({"name": name, "shape": values.shape, "datatype": np_to_triton_dtype(values.dtype), "data": flat})
        parameters = dict(ask.question.parameters)
        if ask.hurry:
            parameters["timeout"] = int(ask.hurry * 1e6)
        version = f"/versions/{ask.version}" if ask.version else ""
        body = {"inputs": inputs, "parameters": parameters, "outputs": [{"name": ask.question.output}]}
        headers = {"x-user": ask.user}
        connection.request("POST", f"/v2/models/{ask.model.name}{version}/infer", json.dumps(body), headers)
        answer = connection.getresponse()
        content = json.loads(answer.read())
        if answer.status != 200:
            kind = _HTTP_CODES.get(str(answer.status), str(answer.status))
            if kind == "unavailable" and "Retry-After" not in answer.headers and not ask.hurry:
                kind = "unavailable without Retry-After"
            raise Failure(kind, content["error"])
        (output,) = content["outputs"]
        data = output["data"]
        values = [it.encode() for it in data] if output["datatype"] == "BYTES" else np.array(data, np.float64)
        self._note_user(ask, content["model_version"])
        return content["model_name"], content["model_version"], np.array(values).reshape(output["shape"])

    def _grpc(self, server, ask, kept):
        client = kept.setdefault("client", tritonclient.grpc.InferenceServerClient(server.grpc_url, channel_args=_LOCAL))
        inputs = list(ask.inputs(tritonclient.grpc.InferInput))
        how = {"parameters": ask.question.parameters, "model_version": ask.version, "client_timeout": ask.hurry or LOST_S}
        if ask.leaves:
            ended = threading.Event()
            outcome = []

            def take(result, error):
                outcome.append((result, error))
                ended.set()

            call = client.async_infer(ask.model.name, inputs, take, **how)
            if not ended.wait(ask.leaves):
                call.cancel()
                assert ended.wait(LOST_S), "a cancelled request has no end"
            ((result, error),) = outcome
            if error:
                raise error
        else:
            result = client.infer(ask.model.name, inputs, **how)
        return self._result(ask, result)

    async def _http_aio(self, server, ask, kept):
        if "client" not in kept:
            kept["client"] = tritonclient.http.aio.InferenceServerClient(server.url, conn_timeout=LOST_S)
        how = {"parameters": ask.question.parameters, "model_version": ask.version}
        if ask.hurry:
            how["timeout"] = int(ask.hurry * 1e6)
        inputs = list(ask.inputs(tritonclient.http.InferInput))
        sent = kept["client"].infer(ask.model.name, inputs, **how)
        return self._result(ask, await self._awaited(sent, ask))

    async def _grpc_aio(self, server, ask, kept):
        if "client" not in kept:
            kept["client"] = tritonclient.grpc.aio.InferenceServerClient(server.grpc_url, channel_args=_LOCAL)
        inputs = list(ask.inputs(tritonclient.grpc.InferInput))
        how = {"parameters": ask.question.parameters, "model_version": ask.version, "client_timeout": ask.hurry or LOST_S}
        return self._result(ask, await self._awaited(kept["client"].infer(ask.model.name, inputs, **how), ask))

    @staticmethod
    async def _awaited(sent, ask):
        try:
            return await asyncio.wait_for(sent, ask.leaves or LOST_S)
        except TimeoutError:
            raise Failure("cancelled" if ask.leaves else "lost", "no answer") from None

    @staticmethod
    def _result(ask, result):
        answer = result.get_response()
        name, version = (
            (answer["model_name"], answer["model_version"])
            if isinstance(answer, dict)
            else (answer.model_name, answer.model_version)
        )
        return name, version, result.as_numpy(ask.question.output)

    # What becomes of it.

    def _loop(self, send):
        generator, life = self._generator(), None
        kept: dict = {}
        while not self._stop.is_set():
            server = self._current.server
            if server is not life:
                life, kept = server, {}
            ask = Ask(generator.choices(self._models, self._weights)[0], generator)
            floor, began = self._floors.get(ask.model.name, 0), time.monotonic()
            try:
                self._judge(send, ask, floor, *send(server, ask, kept))
            except Exception as error:
                if self._judge_error(send, ask, error, server, began) == "no connection":
                    kept.clear()
                    time.sleep(0.05)

    async def _all_aio(self):
        await asyncio.gather(*(self._loop_aio(send) for send in [self._http_aio, self._grpc_aio] * self._each))

    async def _loop_aio(self, send):
        generator, life = self._generator(), None
        kept: dict = {}
        while not self._stop.is_set():
            server = self._current.server
            if server is not life:
                await self._close(kept)
                life = server
            ask = Ask(generator.choices(self._models, self._weights)[0], generator)
            floor, began = self._floors.get(ask.model.name, 0), time.monotonic()
            try:
                self._judge(send, ask, floor, *await send(server, ask, kept))
            except Exception as error:
                if self._judge_error(send, ask, error, server, began) == "no connection":
                    await self._close(kept)
                    await asyncio.sleep(0.05)
        await self._close(kept)

    @staticmethod
    async def _close(kept):
        if client := kept.pop("client", None):
            await client.close()

    def _generator(self):
        with self._lock:
            return random.Random(next(self._seeds))

    def _count(self, send, outcome):
        with self._lock:
            self.counts[send.__name__.lstrip("_"), outcome] += 1

    def _fail(self, send, ask, what):
        self._count(send, "wrong")
        with self._lock:
            self.wrong.append(f"{send.__name__.lstrip('_')}: {ask.model.name} ({ask.model.role}) {ask.version}: {what}")

    def _judge(self, send, ask, floor, name, version, output):
        """The answer is of the right model, of a version that it names and that there was, and right."""
        model = ask.model
        expected = model.expected(int(version))
        found = model.kind.factor(ask.question, output)
        if name != model.name or (ask.version and version != ask.version):
            self._fail(send, ask, f"the answer is of {name} {version}")
        elif found not in expected:
            self._fail(send, ask, f"version {version} answered by the factor {found}; possible are {expected}")
        elif expected[found] < floor:
            states = model.history[expected[found]], model.history[floor]
            self._fail(send, ask, f"version {version} answered after newer ones: {states}")
        else:
            if not ask.version:
                self._raise_floor(model, int(version), found)
            self._count(send, "answered")
            self.answered[model.kind_name] += 1

    def _raise_floor(self, model, version, found):
        """Whoever asks after this answer gets it or a newer one."""
        if model.role != "changing":
            return
        edition = found // EDITION
        with self._lock:
            floor = self._floors.get(model.name, 0)
            places = enumerate(list(model.history))
            newer = (place for place, (_, it) in places if it == (version, edition) and place >= floor)
            # Another client may have had a newer answer meanwhile.
            self._floors[model.name] = min(newer, default=floor)

    def _note_user(self, ask, version):
        if ask.model.role == "released" and not ask.version:
            known = self._users.setdefault((ask.model.name, ask.user), version)
            if known != version:
                self._fail(self._http, ask, f"user {ask.user} had version {known}, and now {version}")

    def _judge_error(self, send, ask, error, server, began):
        kind, text = self._kind(error)
        took = time.monotonic() - began
        has_process = ask.model.kind.has_process or ask.model.kind_name == "ensemble"
        is_killed = has_process and began - self._current.process_killed < KILLED_S
        allowed = {
            "unavailable": True,
            "deadline": ask.hurry is not None,
            "cancelled": ask.leaves is not None,
            "not found": ask.model.role in ("changing", "broken"),
            "invalid": ask.model.role in ("changing", "broken"),
            "no connection": self._current.is_dying(server),
            "internal": is_killed and bool(PROCESS_ENDED.search(text)),
        }
        if kind == "unavailable":
            self.unavailable[re.sub(r"'\S+'|\d+(\.\d+)?", "…", text)[:160]] += 1
        if took >= LOST_S:
            self._fail(send, ask, f"lost: no answer within {took:.0f} s")
        elif allowed.get(kind, False):
            self._count(send, kind)
        else:
            self._fail(send, ask, f"{kind}: {text}")
        return kind

    @staticmethod
    def _kind(error):
        """The kind of an error, and its text."""
        if isinstance(error, Failure):
            return error.kind, str(error)
        if isinstance(error, InferenceServerException):
            status, text = str(error.status()), error.message() or ""
            kind = _GRPC_CODES.get(status.removeprefix("StatusCode."), _HTTP_CODES.get(status, status))
            if status.startswith("StatusCode") and kind == "unavailable" and _NO_CONNECTION.search(text):
                kind = "no connection"
            return kind, text
        if isinstance(error, grpc.RpcError):
            return Clients._kind_of_rpc(error)
        if isinstance(error, OSError | HTTPException | aiohttp.ClientError):
            return "no connection", repr(error)
        return "unexpected", repr(error)

    @staticmethod
    def _kind_of_rpc(error):
        code, text = error.code().name, error.details() or ""
        kind = _GRPC_CODES.get(code, code)
        return ("no connection" if kind == "unavailable" and _NO_CONNECTION.search(text) else kind), text
