"""A scripted server on 127.0.0.1 for tests of the client."""

import contextlib
import http.server
import json
import threading


class Answer:
    """An answer of the scripted server: a status, the content, and headers.

    A subclass may do something else with the handler.
    """

    def __init__(self, status, content, **headers):
        self.status = status
        self.body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.headers = {"Content-Length": str(len(self.body)), **headers}

    def send(self, handler):
        handler.send_response(self.status)
        for name, value in self.headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(self.body)


class Broken(Answer):
    """The connection is closed, before an answer of status 0 or else in the middle of it."""

    def send(self, handler):
        if self.status:
            self.headers["Content-Length"] = str(len(self.body) + 100)
            super().send(handler)
        handler.close_connection = True


class Late(Answer):
    """Nothing, until the test is over."""

    def send(self, handler):
        handler.server.over.wait(20)
        handler.close_connection = True


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append((self.path, content))
            answer = self.server.script.pop(0) if self.server.script else None
        (form, texts), *_ = ((k, v) for k, v in content.items() if k in ("instances", "inputs"))
        texts = texts["text"] if form == "inputs" else texts
        name = {"instances": "predictions", "inputs": "outputs"}[form]
        (answer or Answer(200, {name: [text.upper() for text in texts]})).send(self)

    def log_message(self, *arguments):
        pass


class RestServer(http.server.ThreadingHTTPServer):
    """A server that answers as its script says, and after that with upper case.

    Attributes:
        requests: (path, content) of each, as they came.
        script: `Answer`s for the next requests.
        connections: How many there were.
    """

    request_queue_size = 100

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests, self.script, self.connections = [], [], 0
        self.lock, self.over = threading.Lock(), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/v1/models/demo"

    def refuse(self, status, message, times=1):
        """Lets the next requests fail."""
        self.script = [Answer(status, {"error": message})] * times

    def process_request(self, request, client_address):
        self.connections += 1
        super().process_request(request, client_address)

    def handle_error(self, request, client_address):
        pass  # a client that leaves is no news


@contextlib.contextmanager
def rest_server():
    server = RestServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
