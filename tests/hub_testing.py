"""A hub of models on the loopback address, with a second server for large files as the real one has, and faults to order."""
import functools
import hashlib
import http.server
import json
import os
import re
import ssl
import threading
import time
import urllib.parse

LARGE = (".safetensors", ".gguf", ".bin", ".onnx")  # what Git LFS keeps


@functools.cache
def git_sha1(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@functools.cache
def sha256(content):
    return hashlib.sha256(content).hexdigest()


def file_hash(path, content):
    """By that a cache calls the file's blob."""
    return sha256(content) if path.endswith(LARGE) else git_sha1(content)


def fill_cache(cache, name, files, commit, revision="main"):
    """As huggingface_hub fills it; returns the snapshot."""
    own = cache / ("models--" + name.replace("/", "--"))
    snapshot = own / "snapshots" / commit
    for path, content in files.items():
        blob = own / "blobs" / file_hash(path, content)
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        pointer = snapshot / path
        pointer.parent.mkdir(parents=True, exist_ok=True)
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    (own / "refs").mkdir(exist_ok=True)
    (own / "refs" / revision).write_text(commit)
    return snapshot


class Repository:
    """Commits, each with its files. `revisions` are branches and tags."""

    def __init__(self, files):
        self.commits, self.revisions = {}, {}
        self.gated = self.private = False
        self.commit(files)

    def commit(self, files, revision="main"):
        name = hashlib.sha1(repr(sorted((path, git_sha1(content)) for path, content in files.items())).encode()).hexdigest()
        self.commits[name] = dict(files)
        self.revisions[revision] = name
        return name

    def find(self, revision):
        return self.revisions.get(revision, revision if revision in self.commits else None)


class Request:
    """What came, and how far the answer got."""

    def __init__(self, server, handler):
        self.server, self.method = server, handler.command
        url = urllib.parse.urlsplit(handler.path)  # of a proxy's client, with the host
        self.host = url.netloc
        self.path, self.query = urllib.parse.unquote(url.path), url.query
        self.token = handler.headers.get("Authorization")
        self.range = handler.headers.get("Range")
        self.sent = 0  # bytes of the body


class Hub:
    """`faults` are functions of (handler, request, content) that answer themselves, and return true, or do not."""

    def __init__(self, tls=None):
        """`tls`: a file with a key and its certificate, for the first server to speak HTTPS with."""
        self.repositories, self.moved = {}, {}
        self.requests, self.faults = [], []
        self.lock = threading.Lock()
        self.num_answers = {"hub": 0, "files": 0}  # under way
        self.most_answers = {"hub": 0, "files": 0}  # that ever were at once
        self.token = None  # that private and gated repositories want
        self.speed = None  # bytes/s of each answer of the second server
        self.takes_ranges = True
        self.moves_files = False  # small ones, to another address of the first server
        self.listing = lambda answer: answer  # what is done to a listing before it goes out
        self.page = 1000  # files of a page of a tree
        self.main, self.files = self.serve("hub"), self.serve("files")
        self.url = f"http://127.0.0.1:{self.main.server_port}"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls)
            self.main.socket = context.wrap_socket(self.main.socket, server_side=True, do_handshake_on_connect=False)
            self.main.handle_error = lambda *_: None  # clients that do not trust it go away
            self.url = self.url.replace("http:", "https:")
        self.files_url = f"http://localhost:{self.files.server_port}"

    def serve(self, name):
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                hub.handle(name, self)

            do_HEAD = do_GET

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()  # s until it sees that it is to end
        return server

    def close(self):
        for server in (self.main, self.files):
            server.shutdown()
            server.server_close()

    def add(self, name, files):
        self.repositories[name] = Repository(files)
        return self.repositories[name]

    def of(self, server, pattern=""):
        with self.lock:
            return [request for request in self.requests if request.server == server and re.search(pattern, request.path)]

    def forget(self):
        with self.lock:
            self.requests.clear()

    # -- answers

    def handle(self, server, handler):
        request = Request(server, handler)
        with self.lock:
            self.requests.append(request)
            self.num_answers[server] += 1
            self.most_answers[server] = max(self.most_answers[server], self.num_answers[server])
        try:
            for fault in list(self.faults):
                if fault(handler, request):
                    return
            getattr(self, "answer_" + server)(handler, request)
        except (BrokenPipeError, ConnectionResetError):
            handler.close_connection = True
        finally:
            with self.lock:
                self.num_answers[server] -= 1

    def answer_hub(self, handler, request):
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/(.+)", request.path)
        plain = re.fullmatch(r"/api/models/([^/]+/[^/]+)", request.path)
        file = re.fullmatch(r"(?:/api/resolve-cache)?/([^/]+/[^/]+)/resolve/([0-9a-f]{40}|[^/]+)/(.+)", request.path)
        found = api or file or plain
        if not found:
            return self.fail(handler, 404, "", "no such page")
        name = found.group(1)
        if name in self.moved:
            target = request.path.replace(name, self.moved[name]) + (f"?{request.query}" if request.query else "")
            return self.send(handler, request, 307, b"Temporary Redirect", {"Location": target})
        repository = self.repositories.get(name)
        authorized = self.token and request.token == f"Bearer {self.token}"
        if request.token and not authorized:
            return self.fail(handler, 401, "", "Invalid credentials in Authorization header")
        if repository is None or (repository.private and not authorized):
            return self.fail(handler, 404 if authorized else 401, "RepoNotFound", "Repository not found")
        if repository.gated and not authorized and file:
            return self.fail(handler, 403 if request.token else 401, "GatedRepo", f"Access to model {name} is restricted.")
        revision = "main" if plain else found.group(3) if api else found.group(2)
        commit = repository.find(revision)
        if commit is None:
            return self.fail(handler, 404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if not file:
            files = repository.commits[commit]
            if api and found.group(2) == "tree":
                entries = [{"type": "file", "oid": git_sha1(content), "size": len(content), "path": path,
                            **({"lfs": {"oid": sha256(content), "size": len(content), "pointerSize": 134}} if path.endswith(LARGE) else {})}
                           for path, content in files.items()]
                begin = int(urllib.parse.parse_qs(request.query).get("cursor", ["0"])[0])
                end = begin + self.page
                # A mirror's names another hub.
                more = {"Link": f'<https://hub.invalid{request.path}?recursive=true&cursor={end}>; rel="next"'} if end < len(entries) else {}
                return self.send_json(handler, request, entries[begin:end], more)
            siblings = [self.sibling(path, content, "blobs=" in request.query) for path, content in files.items()]
            return self.send_json(handler, request, self.listing({"id": name, "modelId": name, "sha": commit, "private": False, "tags": [],
                                                                  "downloads": 0, "siblings": siblings}))
        content = repository.commits[commit].get(found.group(3))
        if content is None:
            return self.fail(handler, 404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if found.group(3).endswith(LARGE):
            sha = sha256(content)
            headers |= {"X-Linked-Etag": f'"{sha}"', "X-Linked-Size": str(len(content)), "Location": f"{self.files_url}/{sha}"}
            return self.send(handler, request, 302, b"Found. Redirecting", headers)
        if self.moves_files and not request.path.startswith("/api/"):
            return self.send(handler, request, 307, b"Temporary Redirect", {**headers, "Location": "/api/resolve-cache" + request.path})
        return self.send_file(handler, request, content, {**headers, "ETag": f'"{git_sha1(content)}"'})

    def answer_files(self, handler, request):
        for repository in self.repositories.values():
            for files in repository.commits.values():
                for content in files.values():
                    if sha256(content) == request.path[1:]:
                        return self.send_file(handler, request, content, {"ETag": f'"{request.path[1:]}"'})
        return self.fail(handler, 404, "", "no such file")

    @staticmethod
    def sibling(path, content, blobs):
        entry = {"rfilename": path}
        if blobs:
            entry |= {"size": len(content), "blobId": git_sha1(content)}
            if path.endswith(LARGE):
                entry["lfs"] = {"sha256": sha256(content), "size": len(content), "pointerSize": 134}
        return entry

    def send_file(self, handler, request, content, headers):
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", request.range or "")
        if not wanted or not self.takes_ranges:
            return self.send(handler, request, 200, content, headers)
        begin, end = int(wanted.group(1)), min(len(content), int(wanted.group(2) or len(content)) + 1)
        if begin >= len(content):
            return self.fail(handler, 416, "", "beyond its end")
        return self.send(handler, request, 206, content[begin:end], {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{len(content)}"})

    def send_json(self, handler, request, value, headers=None):
        self.send(handler, request, 200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def send(self, handler, request, status, body, headers, cut=None):
        """`cut`: the connection ends behind so many bytes."""
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if request.method == "HEAD":
            return
        piece = 1 << 16
        for begin in range(0, len(body) if cut is None else min(cut, len(body)), piece):
            part = body[begin:min(begin + piece, len(body) if cut is None else cut)]
            request.sent += len(part)  # before who waits for them has them all
            handler.wfile.write(part)
            if self.speed and request.server == "files":
                time.sleep(len(part) / self.speed)
        if cut is not None:
            handler.close_connection = True

    @staticmethod
    def fail(handler, status, code, message, headers=None):
        handler.send_response(status)
        for name, value in {"X-Error-Code": code, "X-Error-Message": message, "Content-Length": "0", **(headers or {})}.items():
            if value:
                handler.send_header(name, value)
        handler.end_headers()


def failing(server, pattern, status, times=None, headers=None, code=""):
    """A fault: this status, so many times."""
    left = [times]

    def fault(handler, request):
        if request.server != server or not re.search(pattern, request.path) or left[0] == 0:
            return False
        if left[0] is not None:
            left[0] -= 1
        Hub.fail(handler, status, code, "ordered", headers)
        return True

    return fault
