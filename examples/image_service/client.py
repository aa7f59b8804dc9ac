"""The check: several clients at a time, and a look at every answer."""

import collections
import http.client
import io

import numpy as np
import trio
from filters import Image, by_numpy

CLIENTS = 4


def to_npy(image: Image) -> bytes:
    """An array as a file of numpy."""
    file = io.BytesIO()
    np.save(file, image)
    return file.getvalue()


def ask(port: int, name: str, image: Image) -> tuple[int, bytes]:
    """Send one request by the client of the standard library, which knows nothing of the service."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", f"/{name}", to_npy(image))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


async def check(port: int, requests: int) -> int:
    """Send requests, one of them to the broken filter; the number of wrong answers."""
    image = np.random.default_rng(6).integers(0, 256, (64, 64), dtype=np.uint8)
    names = ["blur", "edges"] * (requests // 2)
    names.insert(requests // 3, "sharpen")
    pending = iter(names)
    answers: collections.Counter[str] = collections.Counter()
    wrong = 0

    async def client() -> None:
        nonlocal wrong
        for name in pending:  # each client takes the next one
            status, content = await trio.to_thread.run_sync(ask, port, name, image)
            answers[f"{name}: {status}"] += 1
            if name == "sharpen":
                wrong += status != 500
            else:
                wrong += status != 200 or content != to_npy(by_numpy(name, image))

    async with trio.open_nursery() as nursery:
        for _ in range(CLIENTS):
            nursery.start_soon(client)
    print(
        f"{len(names)} requests, {wrong} wrong answers;",
        ", ".join(f"{answers[key]} x {key}" for key in sorted(answers)),
    )
    return wrong + len(names) - answers.total()
