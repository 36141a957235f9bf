"""A memoised simulation that uses the memory that is free, and no more.

Steps of the simulation depend on earlier ones. `@tenure.cache` keeps their results as long as
there is memory; where another program needs it, the kernel takes results, and they are
computed again. So the host kills nobody, whatever the number of steps.

    python simulation.py --states 20000 --size 100000
"""

import argparse
import random

import tenure


def make_step(size: int):
    @tenure.cache
    def step(state: int) -> bytes:
        """The field after a state: a field of `size` bytes, made of an earlier one."""
        if state < 2:
            return bytes([state + 1]) * size
        # A cheap stand-in for physics, whose outcome is known.
        earlier = step(state // 2)
        return bytes([(earlier[0] + state) % 251]) * size

    return step


def expected(state: int) -> int:
    return state + 1 if state < 2 else (expected(state // 2) + state) % 251


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=100_000, help="bytes of a result")
    parser.add_argument("--lookups", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    step, chance = make_step(options.size), random.Random(options.seed)
    least = tenure.headroom()
    for number in range(options.lookups):
        state = chance.randrange(options.states)
        field = step(state)
        assert field[0] == field[-1] == expected(state) and len(field) == options.size
        if number % 100 == 0:
            least = min(least, tenure.headroom())
    info = step.cache_info()
    print(f"{info.hits} hits, {info.misses} computed, {info.currsize} results are kept")
    print(f"at least {least >> 20} MiB were left")


if __name__ == "__main__":
    main()
