"""The API server, asked by this process itself, over one connection with the kubeconfig's certificate. Stories look at
the cluster many times a second, and a kubectl for each look would take most of their time."""

import base64
import contextlib
import http.client
import json
import os
import ssl
import struct
import subprocess
import tempfile
import urllib.parse

# Kind in small letters -> API group and version, plural, namespaced.
RESOURCES = {
    "clusterrole": ("rbac.authorization.k8s.io/v1", "clusterroles", False),
    "configmap": ("v1", "configmaps", True),
    "daemonset": ("apps/v1", "daemonsets", True),
    "deviceclass": ("resource.k8s.io/v1", "deviceclasses", False),
    "event": ("v1", "events", True),
    "namespace": ("v1", "namespaces", False),
    "node": ("v1", "nodes", False),
    "pod": ("v1", "pods", True),
    "resourceclaim": ("resource.k8s.io/v1", "resourceclaims", True),
    "resourceclaimtemplate": ("resource.k8s.io/v1", "resourceclaimtemplates", True),
    "resourceslice": ("resource.k8s.io/v1", "resourceslices", False),
}

# How many times slower than a real one the node is that the stories are told on.
PATIENCE = float(os.environ.get("PATIENCE", "1"))
TIMEOUT = 30 * PATIENCE


class Failure(Exception):
    """What should have been so, and what was."""


class Absent(Failure):
    """There is no such object."""


class Server:
    """Where the API server is, and who we are."""

    def __init__(self):
        command = [os.environ.get("KUBECTL", "kubectl"), "config", "view", "--raw", "--minify", "--flatten", "-o", "json"]
        self.config = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
        cluster, user = self.config["clusters"][0]["cluster"], self.config["users"][0]["user"]
        self.address = urllib.parse.urlsplit(cluster["server"])
        self.tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        # The certificates of test clusters are simple ones.
        self.tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
        with tempfile.NamedTemporaryFile() as file:
            for part in ("client-certificate-data", "client-key-data"):
                file.write(base64.b64decode(user[part]))
            file.flush()
            self.tls.load_cert_chain(file.name)
        self.kept = self.connection()

    def connection(self):
        return http.client.HTTPSConnection(self.address.hostname, self.address.port or 443, timeout=TIMEOUT, context=self.tls)


_server = None


def server():
    global _server
    _server = _server or Server()
    return _server


def path(kind, name=None, namespace=None, under=""):
    group, plural, namespaced = next(one for short, one in RESOURCES.items() if kind.lower() in (short, one[1]))
    parts = ["", "apis" if "/" in group else "api", group]
    parts += ["namespaces", namespace] if namespaced and namespace else []
    parts += [plural, name, under]
    return "/".join(filter(lambda part: part is not None, parts)).rstrip("/")


def send(method, where, body=None, kind="application/json", **query):
    """The text of an answer."""
    where += "?" + urllib.parse.urlencode(query) if query else ""
    body = json.dumps(body) if body is not None else None
    headers = {"Content-Type": kind, "Accept": "application/json, */*"}
    connection = server().kept
    for last in (False, True):
        # A connection that was kept may be one that the other side has closed.
        last = last or connection.sock is None
        try:
            connection.request(method, where, body, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            break
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if last:
                raise Failure(f"no answer from the API server to {method} {where}: {error!r}") from None
    if answer.status >= 300:
        with contextlib.suppress(ValueError):
            text = json.loads(text)["message"]
        raise (Absent if answer.status == 404 else Failure)(f"{method} {where}: {answer.status}: {text}")
    return text


def ask(method, where, body=None, kind="application/json", **query):
    """The object of an answer."""
    return json.loads(send(method, where, body, kind, **query))


def execute(pod, namespace, container, command):
    """What a command in a container prints.

    Over a web socket, each message of which begins with its channel: 1 output, 2 errors, 3 how it ended.
    """
    query = [("container", container), ("stdout", "1"), ("stderr", "1"), *(("command", word) for word in command)]
    where = path("pod", pod, namespace, "exec") + "?" + urllib.parse.urlencode(query)
    key = base64.b64encode(os.urandom(16)).decode()
    headers = {
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Protocol": "v4.channel.k8s.io",
    }
    connection, said = server().connection(), {1: b"", 2: b"", 3: b""}
    try:
        connection.request("GET", where, headers=headers)
        # Not getresponse(): its buffer would swallow the first messages.
        with connection.sock.makefile("rb") as stream:
            status = stream.readline().decode()
            length = 0
            while line := stream.readline().strip().lower():
                length = int(line.split(b":")[1]) if line.startswith(b"content-length:") else length
            if " 101 " not in status:
                raise Failure(f"exec in {pod}/{container}: {status.strip()}: {stream.read(length).decode()}")
            for message in messages(stream):
                said[message[0]] += message[1:]
    except (OSError, struct.error) as error:
        raise Failure(f"exec in {pod}/{container}: {error!r}") from None
    finally:
        connection.close()
    ended = json.loads(said[3] or "{}")
    if ended.get("status") != "Success":
        words = said[2].decode(errors="replace").strip()
        raise Failure(f"exec of `{' '.join(command)}` in {pod}/{container}: {ended.get('message', 'no end')}: {words}")
    return said[1].decode(errors="replace")


def messages(stream):
    """The binary messages of a web socket, until it is closed. A server's are not masked."""
    whole = b""
    while True:
        first, length = struct.unpack("!BB", stream.read(2))
        if length >= 126:
            (length,) = struct.unpack("!H" if length == 126 else "!Q", stream.read(2 if length == 126 else 8))
        part = stream.read(length)
        if first & 0x0F == 8:
            return
        if first & 0x0F in (0, 1, 2):
            whole += part
            if first & 0x80:
                if whole:
                    yield whole
                whole = b""
