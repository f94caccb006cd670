#!/usr/bin/env bash
# kernel-coder-nano from nothing: pairs in ordinary style, right and wrong answers, tokenizer, random weights, warm-up, and
# what is shipped, in runs/kernel-coder-nano. A day on a CPU; on a GPU with 16 cores 3 minutes for the pairs and 8 for the
# warm-up. SHARDS parts of the pairs are made at a time; flags go to the warm-up: SHARDS=16 configs/nano.sh --run.max_steps 3000
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}
WORKERS=${WORKERS:-2}
SHARDS=${SHARDS:-2}
ORDINARY=${ORDINARY:-64000}  # modules as people write them, in all
D=data/nano
mkdir -p $D
build() { [ -e "$D/$1.parquet" ] || $PYTHON -m kernel_coder.data build --out "$D/$1.parquet" --per-structure 3 "${@:2}"; }
mix() { $PYTHON -m kernel_coder.data mix "$D/$1.parquet" --out "$D/$1-mix.parquet" --wrong 0.4 --plain-inputs "${@:2}"; }

build plain --count 12000 --seed 0 --levels 0 1 --families elementwise activation broadcast residual --workers "$WORKERS"
for shard in $(seq 1 "$SHARDS"); do
  (build "ordinary-$shard" --count $((ORDINARY / SHARDS)) --seed "$shard" --levels 0 0 1 1 2 --families ordinary \
    --verifier arrays --against tests/models/ordinary && mix "ordinary-$shard" --talks 0 --workers 1) &
done
mix plain --talks 0.04 --workers "$WORKERS"
build talks --count 1000 --seed 1000 --levels 0 0 1 1 2 --families ordinary --verifier arrays --against tests/models/ordinary
mix talks --talks 0.5 --workers "$WORKERS"
wait
$PYTHON - $D/*-mix.parquet <<'END'
import sys
from pyarrow import concat_tables, parquet

parquet.write_table(concat_tables(map(parquet.read_table, sys.argv[1:])), "data/nano-mix.parquet", compression="zstd")
END
$PYTHON -m kernel_coder.models.nano tokenizer $D/plain-mix.parquet $D/ordinary-1-mix.parquet --output runs/nano-tokenizer
$PYTHON -m kernel_coder.models.nano init --tokenizer runs/nano-tokenizer --output runs/nano-init
$PYTHON -m kernel_coder.sft --config configs/nano-sft.yaml "$@"
$PYTHON -m kernel_coder.models.nano export "$(ls -d runs/nano-sft/checkpoint-* | sort -V | tail -1)" --output runs/kernel-coder-nano
