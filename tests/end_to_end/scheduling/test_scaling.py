"""Instances that follow the load: more of them while clients wait, with metrics, log and configuration."""

import threading

from http_requests import infer, request, tensor
from model_files import config, write_model
from scrapes import Scrape
from waiting import eventually

BODY = {"inputs": [tensor("INPUT0", "INT32", [1], [3])]}


def write(repository, name, **limits):
    values = {"execute_delay_ms": 50, **limits}
    extra = "\n".join(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in values.items())
    text = config(name, "identity", [("INPUT0", "INT32", (-1,))], [("OUTPUT0", "INT32", (-1,))], 0, extra)
    write_model(repository, name, text)


def instances(server, name):
    return Scrape(server).value("nereid_model_instances", model=name, version="1")


def test_instances_start_while_clients_wait(repository, serve):
    write(repository, "busy", instances_min=1, instances_max=2)
    write(repository, "fixed")
    server = serve()
    assert instances(server, "busy") == 1 and instances(server, "fixed") is None
    stopped, failed = threading.Event(), []

    def send():
        while not stopped.is_set():
            answer = infer(server, "busy", BODY)
            if answer.status != 200 or answer.json["outputs"][0]["data"] != [3]:
                failed.append(answer)

    clients = [threading.Thread(target=send) for _ in range(6)]
    for client in clients:
        client.start()
    try:
        assert eventually(lambda: instances(server, "busy") == 2)
    finally:
        stopped.set()
        for client in clients:
            client.join()
    assert failed == []
    assert "'busy' version 1 gets 2 instances instead of 1: requests wait" in server.log
    served = request(server, "GET", "/v2/models/busy/config").json
    assert [group["count"] for group in served["instance_group"]] == [2]
    assert server.log.count("loading 'busy' version 1") == 1


def test_an_invalid_limit_fails_the_load(repository, serve):
    write(repository, "wrong", instances_min=3, instances_max=2)
    server = serve("--exit-on-error=false", "--strict-readiness=false")
    (line,) = request(server, "POST", "/v2/repository/index").json
    assert line["state"] == "UNAVAILABLE"
    assert "parameter 'instances_min' is 3, more than 'instances_max', which is 2" in line["reason"]
