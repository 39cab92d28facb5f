"""Mixed traffic for SOAK_SECONDS: whole and streamed answers, clients that leave, garbage, engines that die. Memory must stay flat."""
import functools
import os
import random
import re
import signal
import socket
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from serve_testing import BINARY, Server, text_of  # noqa: E402

SECONDS = float(os.environ.get("SOAK_SECONDS", "1800"))
CLIENTS = 24
GROWTH = 1.2 if "tsan" in BINARY else 1.1  # ThreadSanitizer itself grows with threads that end, as an engine's does


def resident(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def client(server, number, deadline, counts):
    rng = random.Random(number)
    wanted = {}  # a seeded request always has the same answer, whoever died meanwhile
    while time.monotonic() < deadline:
        seed = rng.randrange(6)
        chat = seed % 2 == 1
        path = "/v1/chat/completions" if chat else "/v1/completions"
        body = {"max_tokens": 10 + 15 * seed, "seed": seed, "temperature": 0.8, "ignore_eos": True,
                **({"messages": [{"role": "user", "content": f"Say {seed}"}]} if chat else {"prompt": f"Once {seed}", "n": 1 + seed // 4})}
        kind = rng.randrange(10)
        if kind < 4:
            answer = server.post(path, body)
            assert answer.status in (200, 429, 503), answer.text
            if answer.status != 200:
                counts["refused"] += 1
                continue
            text = [choice.get("text") or choice["message"]["content"] for choice in answer.json["choices"]]
            assert wanted.setdefault(seed, text) == text, (wanted[seed], text)
        elif kind < 7:
            text = text_of(server.stream(path, body))
            if seed in wanted and len(wanted[seed]) == 1:
                assert [text] == wanted[seed], (text, wanted[seed])
        elif kind < 9:
            stream = server.stream(path, body)
            for _ in range(rng.randrange(1, 8)):
                next(stream, None)
            stream.close()
        else:
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall(bytes(rng.randrange(256) for _ in range(rng.randrange(200))))
        counts[("whole", "whole", "whole", "whole", "stream", "stream", "stream", "cut", "cut", "garbage")[kind]] += 1


def main():
    server = Server("--max-num-seqs", "16", "--max-queue-len", "64", "--access-log", "none")
    server.connect = functools.partial(server.connect, timeout=600)  # sanitizers are slow, and so may the machine be
    idle = descriptors(server)
    deadline = time.monotonic() + SECONDS
    counts = {"whole": 0, "stream": 0, "cut": 0, "garbage": 0, "refused": 0}
    errors, sizes, deaths = [], [], 0

    def run(number):
        try:
            client(server, number, deadline, counts)
        except BaseException as error:  # noqa: it is told below
            errors.append(f"client {number}: {error!r}")

    threads = [threading.Thread(target=run, args=(i,)) for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
    rng = random.Random(99)
    interval = min(60, SECONDS / 10)
    while time.monotonic() < deadline and not errors:
        time.sleep(interval)
        sizes.append(resident(server.process.pid))
        workers = [f"{resident(pid) / 1e6:.0f}" for pid in server.workers()]
        print(f"{SECONDS - (deadline - time.monotonic()):6.0f} s: front {sizes[-1] / 1e6:.0f} MB, worker {' '.join(workers)} MB, "
              f"{descriptors(server)} descriptors, {deaths} deaths, {counts}", flush=True)
        if rng.random() < 0.5 and server.workers():
            os.kill(rng.choice(server.workers()), signal.SIGKILL)
            deaths += 1
    for thread in threads:
        thread.join()
    status = server.process.poll()
    if status is None:
        kept = time.monotonic() + 60
        while descriptors(server) > idle and time.monotonic() < kept:
            time.sleep(0.1)
        if descriptors(server) > idle:
            errors.append(f"{descriptors(server)} descriptors are open without clients, {idle} were before them")
        status = server.stop(seconds=120)
    # A worker that a sanitizer ends is healed: only the log tells.
    log = server.log()
    if found := re.search(r"Sanitizer|runtime error", log):
        errors.append(f"a sanitizer said: {log[max(0, found.start() - 200):][:8000]}")
    quarter = max(1, len(sizes) // 4)
    grown = min(sizes[-quarter:]) / max(sizes[quarter:2 * quarter] or sizes[:1])
    print(f"exit {status}, memory in the last quarter {grown:.2f}x of the second; errors: {errors}")
    sys.exit(0 if status == 0 and not errors and grown < GROWTH else 1)


if __name__ == "__main__":
    main()
