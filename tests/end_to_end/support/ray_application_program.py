"""Runs an application of Ray Serve: its module, what builds it and its deployment, the port, and its arguments as JSON. Reads commands as
lists in JSON, a line each, and answers each with a line of JSON; ends Ray with its input.

Runs in the environment that ray_cluster.py makes.
"""

import importlib
import json
import sys

import numpy
import ray
from ray import serve


def plain(outputs):
    """Arrays as lists."""
    return {name: array.tolist() for name, array in outputs.items()}


def main():
    path, port, arguments = sys.argv[1:]
    module_name, builder, deployment = path.split(":")
    module, arguments = importlib.import_module(module_name), json.loads(arguments)
    # Never a cluster that runs already.
    ray.init(address="local", log_to_driver=False, logging_level="ERROR", num_cpus=8, include_dashboard=False)
    serve.start(
        http_options={"host": "127.0.0.1", "port": int(port)}, logging_config={"log_level": "ERROR", "enable_access_log": False}
    )
    application = getattr(module, builder)(arguments)
    handle = serve.run(application, name="nereid", route_prefix="/")

    def answer(value):
        # Ray prints other lines.
        print("answer", json.dumps(value), flush=True)

    answer("ready")
    for line in sys.stdin:
        command, *rest = json.loads(line)
        if command == "scale":
            (replicas,) = rest
            options = dict(arguments)
            application = getattr(module, deployment).options(num_replicas=replicas).bind(options.pop("model_repository"), options)
            handle = serve.run(application, name="nereid", route_prefix="/")
            answer("done")
        else:
            model, inputs = rest
            inputs = {name: numpy.array(values, numpy.int32) for name, values in inputs.items()}
            if command == "infer":
                answer(plain(handle.infer.remote(model, inputs).result()))
            else:
                answer([plain(outputs) for outputs in handle.options(stream=True).stream.remote(model, inputs)])
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
