"""What generates and compiles clients for gRPC in Go and Java, as Debian packages it: unpacked, and not installed."""

import debian_packages

_PROTOC = ["protobuf-compiler", "libprotobuf32", "libprotoc32"]
# Debian 12 has releases of Go and its gRPC that read no code that is generated today.
_GO = [
    "golang-1.24-go",
    "golang-1.24-src",
    "golang-github-golang-protobuf-1-5-dev",
    "golang-golang-x-net-dev",
    "golang-golang-x-sys-dev",
    "golang-golang-x-text-dev",
    "golang-google-genproto-dev",
    "golang-google-grpc-dev",
    "golang-google-protobuf-dev",
    "protoc-gen-go",
    "protoc-gen-go-grpc",
]
_JAVA = [
    "libgeronimo-annotation-1.3-spec-java",
    "libgoogle-gson-java",
    "libgrpc-java",
    "libguava-java",
    "libnetty-java",
    "libopencensus-java",
    "libperfmark-java",
    "libprotobuf-java",
    "protobuf-compiler-grpc-java-plugin",
]


def _protoc():
    home = debian_packages.unpack("protoc", _PROTOC)
    return home / "usr/bin", {"LD_LIBRARY_PATH": str(home / "usr/lib/x86_64-linux-gnu")}


def go(folder):
    """Folders of programs, and variables, for a program in this folder."""
    home = debian_packages.unpack("go-grpc", _GO, release="trixie")
    programs, variables = _protoc()
    variables |= {"GO111MODULE": "off", "GOPATH": f"{folder}:{home}/usr/share/gocode", "GOCACHE": str(home / "cache")}
    return {"path": [home / "usr/bin", home / "usr/lib/go-1.24/bin", programs], **variables}


def java():
    """Folders of programs, and variables."""
    home = debian_packages.unpack("java-grpc", _JAVA)
    programs, variables = _protoc()
    return {"path": [home / "usr/bin", programs], "CLASSPATH": f"classes:{home}/usr/share/java/*", **variables}
