"""A web service that filters images, loses its GPU under load, and goes on answering.

POST an image, as an array of uint8 in numpy's format .npy, to /blur or /edges. Somebody has added /sharpen as well,
whose kernel has a bug that ends the CUDA context. HTTP is spoken by h11 (pip install h11), on the streams of trio.

    python examples/image_service --backend sim                 check it with four clients at a time
    python examples/image_service --backend sim --port 8000     serve until Ctrl-C; for example to
        curl --data-binary @image.npy http://127.0.0.1:8000/blur --output blurred.npy
"""

import argparse
import functools
import io
import math
import sys

import h11
import numpy as np
import trio
from client import check, to_npy
from filters import NAMES, BrokenFilter, Filters

import atomr_trio


async def answer(filters: Filters, path: str, body: bytes) -> tuple[int, bytes]:
    """The status and the body of the answer to a request."""
    if path[1:] not in NAMES:
        return 404, b"there are " + " ".join(NAMES).encode()
    try:
        image = np.load(io.BytesIO(body), allow_pickle=False)
        if image.dtype != np.uint8 or image.ndim != 2 or not image.size:
            raise ValueError(f"this is an array of {image.dtype} and shape {image.shape}")
    except (ValueError, EOFError) as error:
        return 400, f"send a .npy of uint8 with two axes: {error}".encode()
    try:
        return 200, to_npy(await filters.apply(path[1:], np.ascontiguousarray(image)))
    except BrokenFilter:
        return 500, b"this filter is broken"


async def converse(filters: Filters, stream: trio.SocketStream) -> None:
    """One connection: a request, an answer, the end."""
    connection, path, body = h11.Connection(h11.SERVER), "", b""
    async with stream:
        try:
            while not isinstance(event := connection.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    connection.receive_data(await stream.receive_some(65536))
                elif isinstance(event, h11.Request):
                    path = event.target.decode()
                elif isinstance(event, h11.Data):
                    body += event.data
                else:
                    return  # closed too early
            status, content = await answer(filters, path, body)
            headers = [("Content-Length", str(len(content))), ("Connection", "close")]
            for each in h11.Response(status_code=status, headers=headers), h11.Data(data=content), h11.EndOfMessage():
                await stream.send_all(connection.send(each) or b"")
        except (h11.RemoteProtocolError, trio.BrokenResourceError):
            pass  # that was no HTTP, or the client has gone


async def main(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C, or until the check is done; the number of wrong answers."""
    # By the default policy, a device ends after more than three losses in a minute. Here strangers cause them.
    # A service on a GPU would also have standby=1, which shortens the pause after a loss.
    policy = atomr_trio.RestartPolicy(intensity=math.inf)
    wrong = 0
    device = atomr_trio.open_device(backend=options.backend, restart_policy=policy)
    async with device as dev, trio.open_nursery() as nursery:
        handler = functools.partial(converse, await Filters.compiled(dev))
        serve = functools.partial(trio.serve_tcp, handler, options.port or 0, host="127.0.0.1")
        listeners = await nursery.start(serve)
        if options.port is None:
            wrong = await check(listeners[0].socket.getsockname()[1], options.requests)
            print("the device is in generation", dev.generation)
            nursery.cancel_scope.cancel()
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["sim", "cuda"], help="default: ATOMR_TRIO_BACKEND, else cuda")
    parser.add_argument("--port", type=int, help="serve on this port until Ctrl-C")
    parser.add_argument("--requests", type=int, default=24, help="requests of the check")
    wrong = 0
    try:
        wrong = trio.run(main, parser.parse_args())
    except* KeyboardInterrupt:
        print("stopped")
    if wrong:
        sys.exit("an answer was wrong or missing")
