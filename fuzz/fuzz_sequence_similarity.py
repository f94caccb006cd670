"""Compare sequence_similarity with CPython's difflib on generated pairs, bit for bit.

    python fuzz/fuzz_sequence_similarity.py --pairs 1000000 --out benchmarks/results/fuzz_sequence_similarity.csv

Pair number i depends on the seed and on i only, so a failure is repeated by --first i --pairs 1. Each pair is also
computed by every way of searching and every vector level that the processor has; all must agree.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import multiprocessing
import platform
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from kernel_coder import _C

WAYS = ["automatic", "bits", "anchors", "diagonals", "windows"]
LEVELS = ["generic", "avx2", "avx512"]
CODE = Path(difflib.__file__).read_text(encoding="utf-8")
ALPHABETS = [
    "a", "ab", "abc", "abcdefgh", "01 \n", "".join(map(chr, range(32, 127))), "".join(map(chr, range(0, 256))),
    "aé", "aбв漢字", "a\ud800\udfff\udc00", "x😀😁🙂\U0010ffff", "\x00\x01\xff",
    "".join(map(chr, range(0x4E00, 0x4F80))),
]  # fmt: skip

Pair = tuple[str, str]


def length(rng: random.Random) -> int:
    """Mostly short; often near a boundary of the algorithm (64-bit words, 100 and 200 characters for autojunk)."""
    kind = rng.random()
    if kind < 0.6:
        return rng.randrange(0, 24)
    if kind < 0.85:
        return rng.randrange(24, 80)
    if kind < 0.95:
        return rng.choice([63, 64, 65, 99, 100, 101, 127, 128, 129, 199, 200, 201, 255, 256, 257])
    return rng.randrange(200, 420)


def letters(rng: random.Random, alphabet: str, size: int) -> str:
    return "".join(rng.choices(alphabet, k=size))


def independent(rng: random.Random) -> Pair:
    alphabet = rng.choice(ALPHABETS)
    return letters(rng, alphabet, length(rng)), letters(rng, alphabet, length(rng))


def mutated(rng: random.Random, text: str) -> str:
    for _ in range(rng.randrange(1, 7)):
        at = rng.randrange(len(text) + 1)
        to = min(len(text), at + rng.randrange(1, 12))
        other = rng.randrange(len(text) + 1)
        change = rng.randrange(5)
        if change == 0:
            text = text[:at] + text[to:]
        elif change == 1:
            text = text[:at] + letters(rng, rng.choice(ALPHABETS), to - at) + text[at:]
        elif change == 2:
            text = text[:at] + letters(rng, text or "a", to - at) + text[to:]
        elif change == 3:
            text = text[:other] + text[at:to] + text[other:]
        else:
            text = text[at:] + text[:at]
    return text


def edited_letters(rng: random.Random) -> Pair:
    a = letters(rng, rng.choice(ALPHABETS), length(rng))
    return a, mutated(rng, a)


def edited_code(rng: random.Random) -> Pair:
    at = rng.randrange(len(CODE) - 500)
    a = CODE[at : at + length(rng)]
    return a, mutated(rng, a)


def unrelated_code(rng: random.Random) -> Pair:
    at, other = rng.randrange(len(CODE) - 500), rng.randrange(len(CODE) - 500)
    return CODE[at : at + length(rng)], CODE[other : other + length(rng)]


def periodic(rng: random.Random) -> Pair:
    alphabet = rng.choice(ALPHABETS)
    unit = letters(rng, alphabet, rng.randrange(1, 9))
    other = unit if rng.random() < 0.5 else letters(rng, alphabet, rng.randrange(1, 9))
    a = (unit * 420)[: length(rng)]
    b = (other * 420)[rng.randrange(len(other)) :][: length(rng)]
    return (a, b) if rng.random() < 0.5 else (mutated(rng, a), b)


def popular(rng: random.Random) -> Pair:
    """Counts close to autojunk's threshold: more than len(b) // 100 + 1 occurrences."""
    size = rng.choice([199, 200, 201, 299, 300, 301])
    threshold = size // 100 + 1
    text = []
    for character in "abcdefghijklmnopqrstuvwxyz":
        text += [character] * rng.choice([0, 1, threshold - 1, threshold, threshold + 1, 9])
    rare = [chr(0x100 + k) for k in range(size)]
    rng.shuffle(rare)
    text = (text + rare)[:size]
    rng.shuffle(text)
    b = "".join(text)
    return (mutated(rng, b), b) if rng.random() < 0.7 else (mutated(rng, b[::-1]), b)


KINDS: list[Callable[[random.Random], Pair]] = [
    independent, edited_letters, edited_code, unrelated_code, periodic, popular,
]  # fmt: skip
WEIGHTS = [30, 25, 18, 10, 13, 4]


def pair(seed: int, index: int) -> tuple[str, str, str]:
    rng = random.Random(f"{seed}:{index}")
    kind = rng.choices(KINDS, WEIGHTS)[0]
    a, b = kind(rng)
    return kind.__name__, a, b


def check(seed: int, index: int) -> tuple[str, int]:
    """The kind of the pair and the number of results compared with difflib's."""
    kind, a, b = pair(seed, index)
    compared = 0
    for autojunk in (False, True):
        if autojunk and len(b) < 200:
            continue  # the two modes are one below 200 characters; the suite tests the boundary
        expected = difflib.SequenceMatcher(None, a, b, autojunk).ratio()
        results = {(way, "automatic"): _C.sequence_similarity(a, b, autojunk, way) for way in WAYS}
        for level in LEVELS:
            results["diagonals", level] = _C.sequence_similarity(a, b, autojunk, "diagonals", level)
        for how, result in results.items():
            if result.hex() != expected.hex():
                raise AssertionError(
                    f"{seed=} {index=} {kind=} {autojunk=} {how=}: {result} != {expected}: {a!r} {b!r}"
                )
        compared += len(results)
    return kind, compared


def check_range(arguments: tuple[int, int, int]) -> tuple[Counter[str], int]:
    seed, first, last = arguments
    kinds: Counter[str] = Counter()
    compared = 0
    for index in range(first, last):
        kind, count = check(seed, index)
        kinds[kind] += 1
        compared += count
    return kinds, compared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, help="CSV to write one row to")
    args = parser.parse_args()

    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    start = time.monotonic()
    last = args.first + args.pairs
    ranges = [(args.seed, first, min(first + 5000, last)) for first in range(args.first, last, 5000)]
    kinds: Counter[str] = Counter()
    compared = 0
    with multiprocessing.Pool(args.processes) as pool:
        for done, (more, count) in enumerate(pool.imap_unordered(check_range, ranges), start=1):
            kinds += more
            compared += count
            if done % 10 == 0 or done == len(ranges):
                print(f"{sum(kinds.values())} pairs, no difference", flush=True)
    if args.out is None:
        return
    row = {
        "pairs": sum(kinds.values()), "differences": 0, "results_compared": compared, "seed": args.seed,
        **{f"pairs_{kind.__name__}": kinds[kind.__name__] for kind in KINDS},
        "seconds": round(time.monotonic() - start), "python": platform.python_version(), "commit": commit or "unknown",
        "command": " ".join(["python", *sys.argv]),
    }  # fmt: skip
    with args.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, row, lineterminator="\n")
        writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
