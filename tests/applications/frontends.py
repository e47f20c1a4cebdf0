"""An application on NVIDIA's packages: NVIDIA's own HTTP, gRPC and metrics servers, over our core. Prints their ports, and runs
until its input ends.

    frontends.py REPOSITORY BACKENDS HTTP GRPC METRICS
"""

import sys

import tritonserver
from tritonfrontend import KServeGrpc, KServeHttp, Metrics

repository, backends, *ports = sys.argv[1:]
# Models that do not load are no reason to stop.
options = {"exit_on_error": False, "strict_readiness": False}
server = tritonserver.Server(model_repository=repository, backend_directory=backends, log_error=True, **options)
server.start(wait_until_ready=True)
faces = [
    face(server, face.Options(address="127.0.0.1", port=int(port)))
    for face, port in zip([KServeHttp, KServeGrpc, Metrics], ports, strict=True)
]
for face in faces:
    face.start()
print("serving", flush=True)
sys.stdin.read()
for face in faces:
    face.stop()
server.stop()
print("stopped", flush=True)
