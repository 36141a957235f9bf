"""Workers of a model server that share decoded inputs.

Decoding an input takes longer than the model does, and popular inputs come again. The workers
keep what they have decoded in one cache, as much as there is memory for: a worker gets an
array of the cached bytes, without a copy, and decodes anew where the kernel has taken it.

    python model_server.py --requests 2000 --inputs 100 --size 224
"""

import argparse
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy
import tenure

WEIGHTS_SEED = 7


def encode(number: int, size: int) -> bytes:
    """An input as a client sends it: a compressed picture of `size` × `size` pixels."""
    picture = numpy.random.default_rng(number).integers(0, 8, (size, size, 3), dtype=numpy.uint8)
    return zlib.compress(picture.tobytes())


def decode(sent: bytes, size: int) -> numpy.ndarray:
    pixels = numpy.frombuffer(zlib.decompress(sent), dtype=numpy.uint8)
    return pixels.reshape(size, size, 3).astype(numpy.float32) / 8


class Server:
    def __init__(self, size: int, workers: int) -> None:
        self.size = size
        self.decoded: tenure.Cache[bytes, numpy.ndarray] = tenure.Cache()
        self.weights = numpy.random.default_rng(WEIGHTS_SEED).random((size, 10), dtype=numpy.float32)
        self.workers = ThreadPoolExecutor(workers)

    def answer(self, sent: bytes) -> int:
        """The class of an input."""
        picture = self.decoded.get(sent)
        if picture is None:
            picture = self.decoded[sent] = decode(sent, self.size)
        return int((picture.mean(axis=2) @ self.weights).sum(axis=0).argmax())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--inputs", type=int, default=100, help="different ones")
    parser.add_argument("--size", type=int, default=224, help="pixels of a side")
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args()
    inputs = [encode(number, options.size) for number in range(options.inputs)]
    server = Server(options.size, options.workers)
    sent = [inputs[number**2 % len(inputs)] for number in range(options.requests)]
    answers = list(server.workers.map(server.answer, sent))
    # Inputs that are the same have the same answer, decoded now or earlier.
    assert len(set(zip(sent, answers))) == len(set(sent))
    stats = server.decoded.stats()
    print(f"{len(answers)} requests, {stats['insertions']} decoded")
    print(f"{stats['values']} inputs of {stats['bytes']} bytes are kept")


if __name__ == "__main__":
    main()
