"""A pipeline whose memory comes back between its stages.

Each stage makes columns and drops those of the one before. Without the heap the C library
may keep what was dropped; with it the memory goes back to the kernel after the time for
reuse. pandas is used where it is installed, numpy alone otherwise.

    python pipeline.py --rows 20000000
"""

import argparse
import time

import numpy
import tenure

try:
    import pandas
except ImportError:
    pandas = None


def read(rows: int) -> dict[str, numpy.ndarray]:
    random = numpy.random.default_rng(0)
    return {
        "shop": random.integers(0, 50, rows),
        "price": random.random(rows) * 100,
        "count": random.integers(1, 9, rows).astype(numpy.float64),
    }


def total(columns: dict[str, numpy.ndarray]) -> numpy.ndarray:
    """The turnover of each shop."""
    turnover = columns["price"] * columns["count"]
    if pandas is None:
        return numpy.bincount(columns["shop"], weights=turnover, minlength=50)
    table = pandas.DataFrame({"shop": columns["shop"], "turnover": turnover})
    return table.groupby("shop")["turnover"].sum().to_numpy()


def report(stage: str) -> None:
    print(f"{stage}: {tenure.residency().rss >> 20} MiB resident")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--decay", type=float, default=0.5, help="seconds for reuse")
    options = parser.parse_args()
    # Lazily freed memory counts as resident: give it back at once after the time for reuse.
    tenure.heap.install(dirty_decay=options.decay, muzzy_decay=0)
    report("start")
    columns = read(options.rows)
    report("read")
    turnover = total(columns)
    report("totalled")
    del columns
    time.sleep(4 * options.decay)
    report("dropped")
    print(f"turnover of {len(turnover)} shops: {turnover.sum():.0f}")


if __name__ == "__main__":
    main()
