"""Nereid's models as an application of Ray Serve, see docs/ray.md: a server within each replica, whose number Serve changes.

    serve run serve:app model_repository=/models
    serve deploy serve.yaml

Requests over HTTP reach a replica's server as they are, so clients see all of its interfaces over HTTP. Deployments of the same cluster
call the models by a handle, without HTTP: `await handle.infer.remote("digits", {"image": pixels})`.
"""

from urllib.parse import quote

import aiohttp
from ray import serve
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from yarl import URL

import nereid

# Headers of a connection, and what is made anew for the next one.
OF_CONNECTIONS = {
    "connection",
    "content-length",
    "date",
    "host",
    "keep-alive",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}


# Serve's own limit of 5 requests at a time would leave nothing to batch.
@serve.deployment(max_ongoing_requests=100)
class Nereid:
    """A replica."""

    def __init__(self, model_repository, options):
        ports = {"http_address": "127.0.0.1", "http_port": 0, "allow_grpc": False, "allow_metrics": False}
        self._server = nereid.Server(model_repository, listen=True, **ports, **options).start()
        self._address = f"http://{self._server.addresses()['HTTP']}"
        self._session = None

    def check_health(self):
        """Serve replaces a replica in which this fails."""
        if not self._server.live():
            raise RuntimeError("the server does not live")

    async def infer(self, model, inputs, **request):
        """The outputs of a model as arrays, by their names. Arguments are those of `nereid.Model.infer`."""
        response = await self._server.model(model).infer_async(inputs, **request)
        return {name: tensor.numpy() for name, tensor in response.outputs.items()}

    async def stream(self, model, inputs, **request):
        """The outputs of each response of a model, for `handle.options(stream=True)`."""
        async with self._server.model(model).stream_async(inputs, **request) as responses:
            async for response in responses:
                yield {name: tensor.numpy() for name, tensor in response.outputs.items()}

    async def __call__(self, request: Request):
        """A request over HTTP."""
        if self._session is None:
            # No limits of its own: the server has some, and Serve's max_ongoing_requests.
            connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
            own = ["Accept", "Accept-Encoding", "Content-Type", "User-Agent"]
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=timeout, auto_decompress=False, skip_auto_headers=own
            )
        headers = [(name, value) for name, value in request.headers.items() if name not in OF_CONNECTIONS]
        body = await request.body()
        answer = await self._session.request(request.method, self._url(request), data=body, headers=headers, allow_redirects=False)
        if answer.content_type == "text/event-stream":
            return StreamingResponse(_events(answer), answer.status, _headers(answer))
        async with answer:
            return Response(await answer.read(), answer.status, _headers(answer))

    def _url(self, request):
        """The request's address at the server, its path and query as the client wrote them."""
        path = quote(request.scope["path"].removeprefix(request.scope.get("root_path", "").rstrip("/")))
        return URL(f"{self._address}{path}?{request.scope['query_string'].decode()}".rstrip("?"), encoded=True)


async def _events(answer):
    """Passes a stream. A client that leaves ends the generator, and so the server's request."""
    async with answer:
        async for part in answer.content.iter_any():
            yield part


def _headers(answer):
    return {name: value for name, value in answer.headers.items() if name.lower() not in OF_CONNECTIONS}


def app(arguments):
    """Builds the application from Serve's arguments: model_repository, and options of the server with underscores."""
    options = dict(arguments)
    return Nereid.bind(options.pop("model_repository"), options)
