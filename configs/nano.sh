#!/usr/bin/env bash
# kernel-coder-nano from nothing: pairs, tokenizer, random weights, warm-up, and what is shipped, in runs/kernel-coder-nano.
# The same on a CPU (an hour on one core) and on a GPU; flags are handed to the warm-up: configs/nano.sh --run.num_threads 1
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}
$PYTHON -m kernel_coder.data build --out data/nano.parquet --count 10000 --seed 0 --per-structure 3 --levels 0 1 \
  --families elementwise activation broadcast residual
$PYTHON -m kernel_coder.models.nano plain data/nano.parquet --output data/nano-plain.parquet
$PYTHON -m kernel_coder.models.nano tokenizer data/nano-plain.parquet --output runs/nano-tokenizer
$PYTHON -m kernel_coder.models.nano init --tokenizer runs/nano-tokenizer --output runs/nano-init
$PYTHON -m kernel_coder.sft --config configs/nano-sft.yaml "$@"
$PYTHON -m kernel_coder.models.nano export "$(ls -d runs/nano-sft/checkpoint-* | tail -1)" --output runs/kernel-coder-nano
