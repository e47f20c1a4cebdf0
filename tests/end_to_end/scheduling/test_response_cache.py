"""The response cache as clients and operators see it. The identity backend answers; statistics tell what was executed."""

import json

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import shared_memory

import nereid_server
from http_requests import LIMIT_S, request
from model_files import config, write_model
from scrapes import Scrape

ON = "response_cache { enable: true }"
LOCAL = "--cache-config=local,size=1048576"


def cached(repository, name="m", extra=""):
    """A cached model that returns its input."""
    tensors = ([("INPUT0", "INT32", [-1])], [("OUTPUT0", "INT32", [-1])])
    write_model(repository, name, config(name, "identity", *tensors, 0, f"{ON}\n{extra}"))


def tensor(module, values):
    """An input of either of Triton's clients."""
    given = module.InferInput("INPUT0", [len(values)], "INT32")
    given.set_data_from_numpy(np.array(values, np.int32))
    return given


class Asker:
    """Asks one model in every way, and tells what was executed meanwhile."""

    def __init__(self, server, model="m"):
        self.model = model
        self.http = tritonclient.http.InferenceServerClient(server.url, network_timeout=LIMIT_S)
        self.grpc = tritonclient.grpc.InferenceServerClient(server.grpc_url)

    def counts(self):
        """Successes, hits and misses."""
        stats = self.http.get_inference_statistics(self.model)["model_stats"][0]
        assert stats["inference_count"] == stats["inference_stats"]["compute_infer"]["count"]
        return [stats["inference_stats"][field]["count"] for field in ("success", "cache_hit", "cache_miss")]

    def json(self, values, outputs=None, **more):
        """A request in JSON."""
        given = tritonclient.http.InferInput("INPUT0", [len(values)], "INT32")
        given.set_data_from_numpy(np.array(values, np.int32), binary_data=False)
        outputs = outputs or [tritonclient.http.InferRequestedOutput("OUTPUT0", binary_data=False)]
        return self.http.infer(self.model, [given], outputs=outputs, **more).as_numpy("OUTPUT0").tolist()

    def binary(self, values, **more):
        """A request in binary."""
        answer = self.http.infer(self.model, [tensor(tritonclient.http, values)], **more)
        return answer.as_numpy("OUTPUT0").tolist()

    def unary(self, values):
        """A request over gRPC."""
        answer = self.grpc.infer(self.model, [tensor(tritonclient.grpc, values)])
        return answer.as_numpy("OUTPUT0").tolist()

    def streamed(self, values):
        """A request in a gRPC stream."""
        answers = []
        self.grpc.start_stream(lambda result, error: answers.append(error or result))
        self.grpc.async_stream_infer(self.model, [tensor(tritonclient.grpc, values)])
        self.grpc.stop_stream()
        (answer,) = answers
        return answer.as_numpy("OUTPUT0").tolist()


@pytest.fixture
def asker(repository, serve):
    """A cached model behind a server with a cache of 1 MiB."""
    cached(repository)
    return Asker(serve(LOCAL))


def test_one_answer_serves_every_protocol(asker):
    for number, ask in enumerate([asker.json, asker.binary, asker.unary, asker.streamed, asker.binary]):
        assert ask([1, 2, 3]) == [1, 2, 3]
        assert asker.counts() == [number + 1, number, 1]
    assert asker.json([1, 2, 3], request_id="other", priority=1, timeout=10**9) == [1, 2, 3]
    assert asker.counts() == [6, 5, 1]
    for values in ([1, 2], [1, 2, 4], [3, 2, 1], []):
        assert asker.unary(values) == values
    assert asker.counts() == [10, 5, 5]


def test_parameters_and_versions_are_told_apart(asker):
    for number in (1, 2):
        for _ in range(2):
            asker.binary([7], parameters={"by": number})
    assert asker.counts() == [4, 2, 2]


def test_generate_and_classes_are_cached_too(repository, serve):
    cached(repository)
    server = serve(LOCAL)
    asker = Asker(server)
    for _ in range(2):
        answer = request(server, "POST", "/v2/models/m/generate", json.dumps({"INPUT0": [5, 6]}))
        assert answer.status == 200 and json.loads(answer.body)["OUTPUT0"] == [5, 6]
    assert asker.counts() == [2, 1, 1]
    for classes in (1, 2):
        output = tritonclient.http.InferRequestedOutput("OUTPUT0", binary_data=False, class_count=classes)
        assert asker.json([5, 6], outputs=[output]) == ["6:1", "5:0"][:classes]
    assert asker.counts() == [4, 3, 1]


def test_shared_memory_counts_by_its_contents(asker):
    size = 12
    name = "nereid_response_cache"
    regions = [shared_memory.create_shared_memory_region(f"{name}_{part}", f"/{name}_{part}", size) for part in "io"]
    try:
        for part in "io":
            asker.http.register_system_shared_memory(f"{name}_{part}", f"/{name}_{part}", size)
        given = tritonclient.http.InferInput("INPUT0", [3], "INT32")
        given.set_shared_memory(f"{name}_i", size)
        output = tritonclient.http.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory(f"{name}_o", size)

        def ask(values):
            shared_memory.set_shared_memory_region(regions[0], [np.array(values, np.int32)])
            asker.http.infer("m", [given], outputs=[output])
            return shared_memory.get_contents_as_numpy(regions[1], np.int32, [3]).tolist()

        assert ask([1, 2, 3]) == [1, 2, 3]
        # What the client writes there afterwards changes no entry.
        assert ask([4, 5, 6]) == [4, 5, 6]
        assert asker.binary([1, 2, 3]) == [1, 2, 3]
        assert asker.binary([4, 5, 6]) == [4, 5, 6]
        assert ask([1, 2, 3]) == [1, 2, 3]
        assert asker.counts() == [5, 3, 2]
    finally:
        asker.http.unregister_system_shared_memory()
        for region in regions:
            shared_memory.destroy_shared_memory_region(region)


def test_a_reload_forgets_and_metrics_go_on(repository, serve):
    cached(repository)
    server = serve(LOCAL, "--model-control-mode=explicit", "--load-model=m")
    asker = Asker(server)
    for _ in range(3):
        asker.unary([1])
    (repository / "m" / "1" / "weights").write_text("new")
    asker.http.load_model("m")
    asker.unary([1])
    assert asker.counts() == [1, 0, 1]
    scrape = Scrape(server)
    of_cache = ["util", "num_entries", "num_hits", "num_misses", "num_lookups", "num_evictions"]
    of_cache += ["lookup_duration", "insertion_duration"]
    gauges = [name for name, kind in scrape.kinds.items() if name.startswith("nv_cache") and kind == "gauge"]
    assert gauges == [f"nv_cache_{name}" for name in of_cache]
    labels = {"model": "m", "version": "1"}
    assert scrape.value("nv_cache_num_hits_per_model", **labels) == 2
    assert scrape.value("nv_cache_num_misses_per_model", **labels) == 2
    assert scrape.value("nv_inference_count", **labels) == 2
    assert scrape.value("nv_inference_request_success", **labels) == 4
    assert scrape.value("nv_cache_num_lookups") == 4
    assert 0 < scrape.value("nv_cache_util") < 1


def test_the_cache_keeps_to_its_size(repository, serve):
    cached(repository)
    server = serve("--cache-config=local,size=100000", "--cache-config=local,unknown=1")
    asker = Asker(server)
    for number in range(100):
        values = [number] * 1000
        assert asker.unary(values) == values
    # Larger than the cache.
    assert asker.unary([1] * 30_000) == [1] * 30_000
    scrape = Scrape(server)
    entries = scrape.value("nv_cache_num_entries")
    assert 15 <= entries <= 25
    # What comes once pushes out others only until the cache knows that it is full.
    evictions = scrape.value("nv_cache_num_evictions")
    assert 20 <= evictions <= 40
    assert scrape.value("nv_cache_util") <= 1
    assert asker.counts() == [101, 0, 101]
    for number in range(100, 140):
        for _ in range(3):
            asker.unary([number] * 1000)
    # The second time stores it, and the third finds it.
    assert asker.counts() == [221, 40, 181]
    scrape = Scrape(server)
    assert scrape.value("nv_cache_num_evictions") - evictions == 40 + entries - scrape.value("nv_cache_num_entries")
    assert "--cache-config=local,unknown has no effect" in server.log


def test_without_a_cache_nothing_is_cached(repository, serve):
    cached(repository)
    server = serve()
    asker = Asker(server)
    for _ in range(2):
        asker.unary([1])
    assert asker.counts() == [2, 0, 0]
    scrape = Scrape(server)
    assert scrape.value("nv_cache_num_hits_per_model", model="m", version="1") == 0
    assert "nv_cache_num_lookups" not in scrape.kinds


@pytest.mark.parametrize("size", [192, 200])
def test_a_cache_too_small_for_any_answer_holds_up_no_request(repository, serve, size):
    cached(repository)
    asker = Asker(serve(f"--cache-config=local,size={size}"))
    assert [asker.unary([1, 2]) for _ in range(3)] == [[1, 2]] * 3
    assert asker.counts() == [3, 0, 3]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--cache-config=local,size=10"], "must be 192 bytes or more"),
        (["--cache-config=local,size=x"], "must be a non-negative integer"),
        (["--cache-config=local,other=1"], "needs the setting 'size'"),
        (["--cache-config=nosuch,size=1048576"], "response cache 'nosuch' is neither built in"),
        ([LOCAL, "--cache-config=local,coalesce=perhaps"], "must be true or false"),
        ([LOCAL, "--cache-directory=/no/such/folder"], "is not a folder"),
        ([LOCAL, "--cache-config=redis,host=h"], "a server has one"),
    ],
)
def test_unusable_flags_are_refused_at_start(repository, flags, reason):
    server = nereid_server.refused_start(repository, *flags)
    assert server.exit_code != 0 and reason in server.log


def test_tritons_own_folder_of_caches_may_be_named_where_it_is_not(repository, serve):
    cached(repository)
    asker = Asker(serve(LOCAL, "--cache-directory=/opt/tritonserver/caches"))
    for _ in range(2):
        asker.unary([1])
    assert asker.counts() == [2, 1, 1]
