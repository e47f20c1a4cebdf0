"""Commands and Python calls with which people wait for a Triton server, probe it and script it.

Each succeeds exactly if the address in `$URL` is healthy by its own rules: an exit status, a printed status, a body.
"""

import http.client
import os
import subprocess
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import httpx
import requests

LIMIT_S = 30

# Shell commands, of which each exits with 0 if the server is healthy.
SCRIPTS = {
    "curl prints the status alone": """test "$(curl -s -o /dev/null -w '%{http_code}' $URL)" = 200""",
    "curl prints body and status": """test "$(curl -s -w '%{http_code}' $URL)" = 200""",
    "curl prints body and status as a number": """[ $(curl -s -w %{http_code} $URL) -eq 200 ]""",
    "curl prints the status on a line of its own": r"""test "$(curl -s -w '\n%{http_code}' $URL | tail -n 1)" = 200""",
    "curl prints the status last": """code=$(curl -s -w '%{http_code}' $URL); test "${code: -3}" = 200""",
    "curl prints body and status by GET": """[[ $(curl -s -X GET -w '%{http_code}' "$URL") == 200 ]]""",
    "curl prints sizes": """test "$(curl -s -w '%{http_code} %{size_download}' $URL)" = '200 0'""",
    "curl prints the content type": """test "$(curl -s -w '%{http_code} %{content_type}' $URL)" = '200 text/plain'""",
    "curl prints nothing": """out=$(curl -sf $URL) && test -z "$out" """,
    "curl -f": "curl -f $URL",
    "curl -sf": "curl -sf $URL > /dev/null",
    "curl -fsS": "curl -fsS -o /dev/null $URL",
    "curl --fail --silent --show-error": "curl --fail --silent --show-error $URL || exit 1",
    "curl -v": "curl -v $URL 2>&1 | grep -q '< HTTP/1.1 200 OK'",
    "curl -v with grep -c": """test "$(curl -v $URL 2>&1 | grep -c '200 OK')" = 1""",
    "curl -i": "curl -s -i $URL | head -n 1 | grep -q '200 OK'",
    "curl -D -": "curl -s -D - -o /dev/null $URL | grep -q '^HTTP/1.1 200'",
    "curl -L with limits": "curl -sfL -m 5 --connect-timeout 2 $URL",
    "curl with retries": "curl -sf --retry 1 --retry-delay 0 --retry-connrefused $URL",
    "curl --http1.0": """test "$(curl -s --http1.0 -w '%{http_code}' $URL)" = 200""",
    "curl --compressed": """test "$(curl -s --compressed -w '%{http_code}' $URL)" = 200""",
    "curl without Accept": """test "$(curl -s -H 'Accept:' -w '%{http_code}' $URL)" = 200""",
    "curl with a JSON type": """test "$(curl -s -H 'Content-Type: application/json' -w '%{http_code}' $URL)" = 200""",
    "curl with a query": """test "$(curl -s -G -d verbose=1 -w '%{http_code}' $URL)" = 200""",
    "curl twice on one connection": """test "$(curl -s -w '%{http_code}' $URL $URL)" = 200200""",
    "wget -qO-": """out=$(wget -q -t 1 -O- $URL) && test -z "$out" """,
    "wget -q -O /dev/null": "wget -q -t 1 -T 5 -O /dev/null $URL",
    "wget -S": "wget -S -t 1 -O /dev/null $URL 2>&1 | grep -q 'HTTP/1.1 200 OK'",
    "bash over /dev/tcp": r"""exec 3<>/dev/tcp/$HOST/$PORT || exit 1
        printf 'GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' $TARGET >&3
        read -t 5 -r version status rest <&3; test "$status" = 200""",
    "bash over /dev/tcp, to the end": r"""exec 3<>/dev/tcp/$HOST/$PORT || exit 1
        printf 'GET %s HTTP/1.0\r\n\r\n' $TARGET >&3
        answer=$(timeout 5 cat <&3) && grep -q '^HTTP/1.. 200 OK' <<< "$answer" """,
}

# Shell commands that ask by HEAD, which the server does not answer: they fail with the reference, too.
BY_HEAD = {
    "curl -I": "curl -s -I $URL | head -n 1 | grep -q ' 200'",
    "curl -sfI": "curl -sfI -o /dev/null $URL",
    "wget --spider": "wget -q -t 1 --spider $URL",
    "wget --no-verbose --tries=1 --spider": "wget --no-verbose --tries=1 --spider $URL || exit 1",
}


def succeeds(script, url):
    """Whether a shell command succeeds at an address."""
    parts = urlsplit(url)
    variables = {"URL": url, "HOST": parts.hostname, "PORT": str(parts.port), "TARGET": parts.path, "PATH": os.defpath}
    outcome = subprocess.run(["bash", "-c", script], env=variables, capture_output=True, timeout=LIMIT_S, check=False)
    return outcome.returncode == 0


def _by_urllib(url):
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        return answer.status == 200 and answer.read() == b""


def _by_http_client(url):
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=LIMIT_S)
    try:
        statuses = []
        for _ in range(2):
            connection.request("GET", parts.path, headers={"Accept": "*/*"})
            answer = connection.getresponse()
            statuses.append((answer.status, answer.read()))
        return statuses == [(200, b"")] * 2
    finally:
        connection.close()


def _by_http2(url):
    with httpx.Client(http1=False, http2=True, timeout=LIMIT_S) as client:
        answer = client.get(url)
        return (answer.status_code, answer.http_version, answer.content) == (200, "HTTP/2", b"")


def _by_requests(**how):
    """The status and the body, by a request with these arguments."""

    def call(url):
        answer = requests.get(url, timeout=LIMIT_S, **how)
        return (answer.status_code, answer.text) == (200, "")

    return call


def _by_httpx(url):
    answer = httpx.get(url, timeout=LIMIT_S)
    return (answer.status_code, answer.content) == (200, b"")


# Python calls, of which each returns True if the server is healthy; otherwise it returns False or raises one of `ERRORS`.
CALLS = {
    "urllib": _by_urllib,
    "http.client": _by_http_client,
    "requests, status": lambda url: requests.get(url, timeout=LIMIT_S).ok,
    "requests, raising": lambda url: requests.get(url, timeout=LIMIT_S).raise_for_status() is None,
    "requests, status and body": _by_requests(),
    "requests with a JSON body": _by_requests(json={"a": 1}),
    "requests with a JSON type": _by_requests(headers={"Content-Type": "application/json"}, data="{}"),
    "requests with a query": _by_requests(params={"verbose": "1"}),
    "httpx": _by_httpx,
}
OVER_HTTP2 = {"httpx over HTTP/2": _by_http2}
ERRORS = (OSError, http.client.HTTPException, httpx.HTTPError, requests.RequestException, urllib.error.URLError)


def holds(call, url):
    """Whether a Python call finds the address healthy."""
    try:
        return call(url)
    except ERRORS:
        return False
