"""A server that speaks as much of S3 as is needed to read, and sends files straight from the disk, so that what is measured is the
client: `fast_s3.py FOLDER`. Buckets are the folders of a folder. It prints its port, and counts requests at `/count`.
"""

import base64
import os
import re
import sys
import zlib
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Store:
    def __init__(self, root):
        self.root = Path(root)
        self.count = 0
        # As S3 keeps them: made when an object is uploaded.
        self.checksums = {path: checksum(path) for path in self.root.rglob("*") if path.is_file()}

    def objects(self, bucket):
        folder = self.root / bucket
        return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}

    def list(self, bucket, query):
        """All keys on one page, or those of a folder and the folders in it."""
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        contents, folders = [], set()
        for key, path in self.objects(bucket).items():
            if not key.startswith(prefix):
                continue
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.split(delimiter)[0] + delimiter)
                continue
            contents.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{path.stat().st_size}</Size><ETag>{etag(path)}</ETag>"
                "<LastModified>2020-01-01T00:00:00.000Z</LastModified></Contents>"
            )
        common = [f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in sorted(folders)]
        count = len(contents) + len(common)
        head = f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{count}</KeyCount><MaxKeys>100000</MaxKeys>"
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"{head}<IsTruncated>false</IsTruncated>{''.join(contents + common)}</ListBucketResult>"
        ).encode()


def checksum(path):
    value = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return base64.b64encode(value.to_bytes(4, "big")).decode()


def etag(path):
    """As of an object that was uploaded in parts: it says nothing of its contents."""
    return f'"{zlib.crc32(str(path).encode()):032x}-2"'


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, root):
        super().__init__(("127.0.0.1", 0), Handler)
        self.store = Store(root)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self):
        parts = urlsplit(self.path)
        store, query = self.server.store, parse_qs(parts.query, keep_blank_values=True)
        if parts.path == "/count":
            return self.reply(str(store.count).encode())
        store.count += 1
        _, bucket, *key = unquote(parts.path).split("/", 2)
        key = "".join(key)
        if not key:
            return self.reply(store.list(bucket, query) if self.command == "GET" else b"")
        path = store.root / bucket / key
        if not path.is_file():
            return self.reply(b"<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>", 404)
        size = path.stat().st_size
        first, last, status = 0, size - 1, 200
        if wanted := re.match(r"bytes=(\d+)-(\d+)$", self.headers.get("range", "")):
            first, last, status = int(wanted[1]), min(int(wanted[2]), size - 1), 206
        self.send_response(status)
        self.send_header("content-length", str(last - first + 1))
        self.send_header("etag", etag(path))
        self.send_header("last-modified", formatdate(1577836800, usegmt=True))
        if status == 206:
            self.send_header("content-range", f"bytes {first}-{last}/{size}")
        elif "x-amz-checksum-mode" in self.headers:
            self.send_header("x-amz-checksum-crc32", store.checksums[path])
            self.send_header("x-amz-checksum-type", "FULL_OBJECT")
        self.end_headers()
        if self.command == "HEAD":
            return None
        with open(path, "rb") as file:
            while first <= last:
                first += os.sendfile(self.connection.fileno(), file.fileno(), first, last - first + 1)
        return None

    do_HEAD = do_GET

    def reply(self, body, status=200):
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def main():
    server = Server(sys.argv[1])
    print(server.server_address[1], flush=True)
    server.serve_forever()


main()
