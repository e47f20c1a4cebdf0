"""An application on NVIDIA's package `tritonserver`: prints as JSON what a server inside it answers.

bindings.py REPOSITORY BACKENDS
"""

import dataclasses
import json
import sys

import numpy
import tritonserver

repository, backends = sys.argv[1:]
records: dict[str, object] = {}
heard = []
hears = any(field.name == "log_callback" for field in dataclasses.fields(tritonserver.Options))
callback = {"log_callback": lambda level, file, line, micros, message: heard.append(message)} if hears else {}
server = tritonserver.Server(
    model_repository=repository,
    backend_directory=backends,
    model_control_mode=tritonserver.ModelControlMode.EXPLICIT,
    startup_models=["echo"],
    server_id="inside",
    log_error=True,
    **callback,
)
server.start(wait_until_ready=True)
records["states"] = [server.live(), server.ready(), server.metadata()["name"]]
records["models"] = sorted(f"{name} {version} {found.state}" for (name, version), found in server.models().items())
model = server.model("echo")
records["metadata"] = model.metadata()["inputs"]
answers = []
for first in range(3):
    numbers = numpy.arange(first, first + 4, dtype=numpy.float32).reshape(1, 4)
    for response in model.infer(inputs={"INPUT0": numbers}, request_id=str(first)):
        output = numpy.from_dlpack(response.outputs["OUTPUT0"])
        answers.append([response.request_id, output.tolist()])
records["answers"] = answers
records["statistics"] = model.statistics()["model_stats"][0]["inference_count"]
records["metrics"] = 'nv_inference_count{model="echo",version="1"} 3' in server.metrics()
try:
    list(model.infer(inputs={"INPUT0": numpy.zeros((1, 3), numpy.float32)}))
except tritonserver.InvalidArgumentError as error:
    records["wrong shape"] = "INPUT0" in str(error)
try:
    server.load("none")
except tritonserver.TritonError as error:
    records["no model"] = type(error).__name__
server.load("slow")
records["loaded"] = server.model("slow").ready()
server.unload("slow", wait_until_unloaded=True)
records["unloaded"] = server.model("slow").ready()
# The flag that ends a decoupled model's answers comes alone, however early it is known.
server.load("many")
apart = []
for count in [0, 1, 2, 40] * 10:
    question = {"inputs": {"IN": numpy.zeros(1, numpy.int32)}, "parameters": {"do": "many", "count": count}}
    apart.append([response.final for response in server.model("many").infer(**question)] == [False] * count + [True])
records["ends apart"] = all(apart)
server.stop()
records["heard"] = any("none" in message for message in heard) if hears else None
print(json.dumps(records))
